"""Which interpreter has what a contestant needs."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path


class Foreign(str, Enum):
    """Whom we are measured beside, if asked for."""

    TENSORFLOW = "tensorflow"
    TORCH_RPC = "torch_rpc"
    RAY = "ray"
    MXNET = "mxnet"


_OF_THEIR_OWN = (Foreign.TENSORFLOW, Foreign.RAY, Foreign.MXNET)


def python_of(peer: Foreign | None) -> Path:
    """Returns the interpreter of a peer, or of ourselves.

    Peers with an environment of their own have it in `.venv-<name>`, or where
    `<NAME>_PYTHON` says. Their pins are in the Makefile.
    """
    if peer not in _OF_THEIR_OWN:
        return Path(sys.executable)
    default = f".venv-{peer.value}/bin/python"
    # Not resolved: a link's own place tells which environment it is of.
    return Path(os.environ.get(f"{peer.name}_PYTHON", default)).absolute()


def missing(peer: Foreign) -> str:
    """Why a peer cannot be measured here; empty if it can."""
    python = python_of(peer)
    return "" if python.exists() else f"there is no {python}; run `make peers`"
