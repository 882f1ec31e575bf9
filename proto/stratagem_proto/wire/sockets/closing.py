"""The end of sockets, on either side."""

from __future__ import annotations

import socket
from contextlib import suppress


def hang_up(sock: socket.socket) -> None:
    """Closes a socket, also where a process that was forked from this one has it open.

    Who waits at it fails. May be called again.
    """
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
