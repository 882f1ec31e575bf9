"""Which interpreter has what a contestant needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from enum import Enum
from pathlib import Path


class Foreign(str, Enum):
    """Whom we are measured beside, if asked for."""

    TENSORFLOW = "tensorflow"
    TORCH_RPC = "torch_rpc"
    RAY = "ray"
    MXNET = "mxnet"


_OF_THEIR_OWN = {Foreign.TENSORFLOW: "tensorflow-cpu", Foreign.RAY: "ray", Foreign.MXNET: "mxnet"}


def python_of(peer: Foreign | None) -> Path:
    """Returns the interpreter of a peer, or of ourselves.

    Peers with an environment of their own have it in `.venv-<name>`, or where `<NAME>_PYTHON` says.
    Their pins are in `requirements.txt` of their folders.
    """
    if peer not in _OF_THEIR_OWN:
        return Path(sys.executable)
    default = f".venv-{peer.value}/bin/python"
    # Not resolved: a link's own place tells which environment it is of.
    return Path(os.environ.get(f"{peer.name}_PYTHON", default)).absolute()


def versions(peers: Collection[Foreign]) -> dict[str, str]:
    """Return the versions of those that have an environment of their own."""
    return {
        peer.value: _version(python_of(peer), _OF_THEIR_OWN[peer])
        for peer in peers
        if peer in _OF_THEIR_OWN
    }


def _version(python: Path, package: str) -> str:
    program = f"from importlib.metadata import version; print(version({package!r}))"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True)
    return found.stdout.strip()


def missing(peer: Foreign) -> str:
    """Why a peer cannot be measured here; empty if it can."""
    python = python_of(peer)
    return "" if python.exists() else f"there is no {python}; run `make peers`"
