"""The checkpoints beside which incremental ones are read."""

from __future__ import annotations

import logging

from stratagem_proto.checkpoint.folder import Checkpoint, CheckpointPolicy, open_checkpoint
from stratagem_proto.errors import NotFoundError, StratagemError
from stratagem_proto.stores.places import Place
from stratagem_proto.stores.store import is_checkpoint

_LOG = logging.getLogger("stratagem")

# After so many incremental checkpoints comes a whole one: a restoration reads a row in one of them,
# and asks each before whether it has it.
_MOST_BASES = 8


def latest_base(root: Place, key: str) -> Checkpoint | None:
    """Return the latest checkpoint in a folder, if the next one can be read beside it."""
    try:
        latest = open_checkpoint(root, CheckpointPolicy(key=key))
    except NotFoundError:
        return None
    except StratagemError as error:
        _LOG.warning("the next checkpoint will have all rows, since %s", error)
        return None
    is_one = is_checkpoint(latest.folder.name) and len(latest.index.bases) < _MOST_BASES
    return latest if is_one else None
