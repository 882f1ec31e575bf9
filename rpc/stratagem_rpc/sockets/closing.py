"""Closing sockets, also those that forks inherit, and noticing that the other host is gone."""

from __future__ import annotations

import os
import socket
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

_PROBE_SECONDS = 5

# How often each port of TCP, or name of a Unix socket, is served by this process.
_served: Counter[int | bytes] = Counter()


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


def served_at(sock: socket.socket) -> int | bytes | None:
    """Return the port, or the abstract name, at which a socket of a server is; None if at none."""
    name = sock.getsockname()
    return name[1] if isinstance(name, tuple) else name or None


@contextmanager
def kept_from_forks(places: Collection[int | bytes]) -> Iterator[None]:
    """Have processes that are forked meanwhile leave alone the sockets of servers at these places.

    Otherwise a fork that outlives its parent listens there: the kernel goes on to accept
    connections that nobody greets, and no other server gets the port.

    Args:
        places: As `served_at` returns them.
    """
    _served.update(places)
    try:
        yield
    finally:
        _served.subtract(places)


def _let_go() -> None:
    served = {place for place, times in _served.items() if times > 0}
    _served.clear()
    if not served:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and _place_of(int(name)) in served:
                # gRPC still knows the number, which must not become that of another file.
                os.dup2(nothing, int(name), inheritable=False)
    os.close(nothing)


def _place_of(descriptor: int) -> int | bytes | None:
    sock = socket.socket(fileno=descriptor)
    try:
        return served_at(sock)
    finally:
        sock.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


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
