"""Memory that two processes see, and a bare socket: `... limits.shared_memory FD`.

The other process does to its variable what a parameter server does, and nothing else: nobody is
identified, nothing is numbered, checked or counted.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection

import torch
from torch import multiprocessing

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.server import server
from benchmarks.peers.transfer import Transfers

_PUSH, _PULL, _DONE = b"<", b">", b"!"
_REQUEST_BYTES = 9
_MOST_BYTES = 100_000_000
_RATE = 0.01


class Placed:
    """A variable whose bytes are placed in shared memory; as `Transfer`."""

    def __init__(self, connection: socket.socket, shared: torch.Tensor, nbytes: int) -> None:
        self._connection = connection
        self._size = nbytes.to_bytes(_REQUEST_BYTES - 1, "little")
        self._here = torch.zeros(nbytes // shared.element_size())
        self._there = shared[: len(self._here)]

    def push(self) -> None:
        """Copies the gradient there, and waits until the variable has changed."""
        self._there.copy_(self._here)
        self._ask(_PUSH)

    def pull(self) -> None:
        """Waits until the value is there, and copies it."""
        self._ask(_PULL)
        self._here.copy_(self._there)

    def _ask(self, kind: bytes) -> None:
        self._connection.sendall(kind + self._size)
        self._connection.recv(len(_DONE))

    def close(self) -> None:
        """Leaves the memory to the next one."""


@contextmanager
def contestant() -> Iterator[Answer]:
    """What shares memory with a process of its own."""
    torch.set_num_threads(1)
    multiprocessing.set_sharing_strategy("file_descriptor")
    shared = torch.zeros(_MOST_BYTES // 4).share_memory_()
    mine, theirs = socket.socketpair()
    with closing(mine), server(_serve, theirs, shared):
        theirs.close()
        yield Transfers(partial(Placed, mine, shared))


def _serve(parent: Connection, connection: socket.socket, shared: torch.Tensor) -> None:
    torch.set_num_threads(1)
    parent.send("ready")
    variable = torch.zeros(0)
    while request := connection.recv(_REQUEST_BYTES):
        count = int.from_bytes(request[1:], "little") // shared.element_size()
        if len(variable) != count:
            variable = torch.zeros(count)
        _answer(request[:1], variable, shared[:count])
        connection.sendall(_DONE)


def _answer(kind: bytes, variable: torch.Tensor, shared: torch.Tensor) -> None:
    if kind == _PUSH:
        variable.add_(shared, alpha=-_RATE)
    else:
        shared.copy_(variable)


if __name__ == "__main__":
    serve(contestant)
