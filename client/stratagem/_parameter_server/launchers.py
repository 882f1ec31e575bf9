"""Programs that start several processes, and no parameter servers."""

from __future__ import annotations

import logging
import os

_LOG = logging.getLogger("stratagem")


def warn_of_torchrun() -> None:
    """Say that a process of `torchrun` trains a model of its own, as no cluster is described.

    Its first process says nothing: it may be there to train alone, as a program that is written for
    several strategies does.
    """
    rank = os.environ.get("RANK", "")
    if rank.isdecimal() and int(rank) > 0:
        size = os.environ.get("WORLD_SIZE", "?")
        _LOG.warning(
            "ParameterServerStrategy has no cluster, and process %s of %s trains a model of its "
            "own: torchrun starts no parameter servers. Start the program by `stratagem run --ps 1 "
            "--workers %s`, or set TF_CONFIG",
            rank,
            size,
            size,
        )
