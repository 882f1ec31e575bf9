"""Why a connection cannot be used any more."""

from __future__ import annotations

import os

from stratagem_proto.errors import CancelledError, ForkedProcessError, SessionLostError


def closed(peer: str) -> CancelledError:
    """Return the error of one that somebody has closed."""
    return CancelledError(f"the connection to {peer} is closed; make a new strategy")


def forked(peer: str, process: int) -> ForkedProcessError:
    """Return the error of one that this process got by a fork."""
    return ForkedProcessError(
        f"the connection to {peer} belongs to process {process}, "
        f"but process {os.getpid()} was forked from it and uses it; gRPC does "
        "not survive a fork. Keep strategies and variables out of the child, "
        "or start it otherwise, for instance by DataLoader(multiprocessing_"
        'context="forkserver")'
    )


def restarted(peer: str) -> SessionLostError:
    """Return the error of one whose server has lost its memory."""
    return SessionLostError(
        f"{peer} was restarted, and the variables that it hosted are "
        "gone. Start the program again, or restore a checkpoint"
    )
