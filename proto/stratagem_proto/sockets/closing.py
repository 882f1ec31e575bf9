"""Closing sockets, and detecting that the host at the other end is gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PROBE_SECONDS = 5


@contextmanager
def closed_on_failure(sock: socket.socket) -> Iterator[socket.socket]:
    """Close a socket if the block fails."""
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


def hang_up(sock: socket.socket) -> None:
    """Close a socket, even if a process that was forked from this one has it open, too.

    Threads that wait for the socket fail. This function may be called again.
    """
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def tune(sock: socket.socket, stall_seconds: float) -> None:
    """Set a socket to send small frames at once, and to fail when the other host is gone.

    Args:
        sock: A TCP socket.
        stall_seconds: The most seconds in which the other host acknowledges neither data nor
            probes.

    Raises:
        OSError: The connection broke, or this system cannot detect that a host is gone.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        raise OSError("only Linux ends connections to hosts that are gone in time")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = max(_PROBE_SECONDS, int(stall_seconds) - _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1)
    # Probes are sent on idle connections; this covers those with unacknowledged data.
    milliseconds = int(stall_seconds * 1000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
