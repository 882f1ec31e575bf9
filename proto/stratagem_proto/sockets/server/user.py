"""The user of the process at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")
_ROOT = 0


def user_of(connection: socket.socket) -> int:
    """Return the number of the user, as this process sees it.

    Raises:
        OSError: The system does not say.
    """
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    return int(user)


def is_trusted(user: int) -> bool:
    """Return whether a user may connect: that of this process, or root."""
    return user in (os.geteuid(), _ROOT)
