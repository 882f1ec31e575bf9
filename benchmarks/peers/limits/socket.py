"""A bare socket to a process that only moves bytes.

`... benchmarks.peers.limits.socket FD tcp`, or `unix`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.server import server
from benchmarks.peers.transfer import Transfers

_PUSH, _PULL = b"<", b">"
_REQUEST_BYTES = 9

Address: TypeAlias = tuple[str, int] | str


class Bytes:
    """Bytes that go through a socket; as `Transfer`."""

    def __init__(self, connection: socket.socket, nbytes: int) -> None:
        self._connection = connection
        self._buffer = memoryview(bytearray(nbytes))
        self._size = nbytes.to_bytes(_REQUEST_BYTES - 1, "little")

    def push(self) -> None:
        """Sends the bytes and waits for one in return."""
        self._connection.sendall(_PUSH + self._size)
        self._connection.sendall(self._buffer)
        _receive(self._connection, memoryview(bytearray(1)))

    def pull(self) -> None:
        """Asks for the bytes and receives them in place."""
        self._connection.sendall(_PULL + self._size)
        _receive(self._connection, self._buffer)

    def close(self) -> None:
        """Leaves the buffers to the next one."""


@contextmanager
def contestant(kind: str) -> Iterator[Answer]:
    """What is connected to a server of its own."""
    with TemporaryDirectory() as folder:
        bind = ("127.0.0.1", 0) if kind == "tcp" else str(Path(folder) / "socket")
        with server(_serve, bind) as address, closing(_connected(address)) as mine:
            yield Transfers(partial(Bytes, mine))


def _connected(address: Address) -> socket.socket:
    connection = socket.socket(_family(address))
    connection.connect(address)
    return _without_delay(connection)


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_UNIX if isinstance(address, str) else socket.AF_INET


def _without_delay(connection: socket.socket) -> socket.socket:
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _serve(parent: Connection, bind: Address) -> None:
    with closing(socket.create_server(bind, family=_family(bind))) as listener:
        parent.send(listener.getsockname())
        connection = _without_delay(listener.accept()[0])
    request, view = memoryview(bytearray(_REQUEST_BYTES)), memoryview(bytearray())
    while _receive(connection, request):
        nbytes = int.from_bytes(request[1:], "little")
        if len(view) != nbytes:
            view = memoryview(bytearray(nbytes))
        _answer(connection, bytes(request[:1]), view)


def _answer(connection: socket.socket, kind: bytes, view: memoryview) -> None:
    if kind == _PUSH:
        _receive(connection, view)
        connection.sendall(b"!")
    else:
        connection.sendall(view)


def _receive(connection: socket.socket, view: memoryview) -> bool:
    """Fills the view; False if the peer closed instead."""
    received = 0
    while received < len(view):
        count = connection.recv_into(view[received:])
        if count == 0:
            return False
        received += count
    return True


if __name__ == "__main__":
    serve(contestant)
