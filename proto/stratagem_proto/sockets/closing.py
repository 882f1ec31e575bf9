"""How sockets end, on either side: closed, or seen to have lost the other end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PROBE_SECONDS = 5


@contextmanager
def closed_on_failure(sock: socket.socket) -> Iterator[socket.socket]:
    """Close a socket unless what is done with it meanwhile succeeds."""
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


def hang_up(sock: socket.socket) -> None:
    """Close a socket, also where a process that was forked from this one has it open.

    Who waits at it fails. May be called again.
    """
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def tune(sock: socket.socket, stall_seconds: float) -> None:
    """Have small frames leave at once, and end connections whose other host is gone.

    Args:
        sock: A TCP socket.
        stall_seconds: For how long the other host may take nothing of what it is sent, or not
            answer to probes.

    Raises:
        OSError: The connection broke, or this system does not end such connections.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        raise OSError("only Linux ends connections to hosts that are gone in time")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = max(_PROBE_SECONDS, int(stall_seconds) - _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1)
    # Probes are for sockets at rest; this is for those with something to send.
    milliseconds = int(stall_seconds * 1000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
