"""The end of sockets, on either side."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def closed_on_failure(sock: socket.socket) -> Iterator[socket.socket]:
    """Closes a socket unless what is done with it meanwhile succeeds."""
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


def hang_up(sock: socket.socket) -> None:
    """Closes a socket, also where a process that was forked from this one has it open.

    Who waits at it fails. May be called again.
    """
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
