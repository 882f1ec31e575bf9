"""Rows of a table in another process, and nothing else: `... limits.bare_lookups FD`.

Rows and their indices go through memory that both processes see, and a byte through a socket says
that they are there; nobody is identified, nothing is numbered or checked.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch
from torch import Tensor, multiprocessing

from benchmarks.peers.lookups import answers
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.row_batches import LOOKUPS, ROWS, WIDTH
from benchmarks.peers.server import server
from stratagem_proto.rows import put, summed

_PULL, _PUSH, _DONE = b">", b"<", b"!"
_COUNT_BYTES = 2
_RATE, _EPSILON = 0.01, 1e-10


class Shared(NamedTuple):
    """What both processes see.

    Attributes:
        indices: Of rows, int64.
        rows: Values or gradients.
    """

    indices: Tensor
    rows: Tensor


class Rows:
    """Requests for rows; as `Table`."""

    def __init__(self, connection: socket.socket, shared: Shared) -> None:
        self._connection, self._shared = connection, shared
        self._gradients = torch.ones(LOOKUPS, WIDTH)

    def pull(self, indices: Tensor) -> Tensor:
        """Reads a row for each index."""
        self._ask(_PULL, indices)
        return self._shared.rows[: len(indices)].clone()

    def push(self, indices: Tensor) -> None:
        """Adds up what is for the same row; the server steps Adagrad."""
        rows, sums = summed(indices, self._gradients)
        self._shared.rows[: len(rows)] = sums
        self._ask(_PUSH, rows)

    def _ask(self, kind: bytes, rows: Tensor) -> None:
        self._shared.indices[: len(rows)] = rows
        self._connection.sendall(kind + len(rows).to_bytes(_COUNT_BYTES, "little"))
        self._connection.recv(len(_DONE))


@contextmanager
def contestant() -> Iterator[Answer]:
    """What shares memory with a process that has a table."""
    torch.set_num_threads(1)
    multiprocessing.set_sharing_strategy("file_descriptor")
    shared = Shared(torch.zeros(LOOKUPS, dtype=torch.int64), torch.zeros(LOOKUPS, WIDTH))
    for each in shared:
        each.share_memory_()
    mine, theirs = socket.socketpair()
    with closing(mine), server(_serve, theirs, shared):
        theirs.close()
        yield answers(Rows(mine, shared), torch.from_numpy)


def _serve(parent: Connection, connection: socket.socket, shared: Shared) -> None:
    torch.set_num_threads(1)
    table, squares = torch.zeros(2, ROWS, WIDTH)
    parent.send("ready")
    while request := connection.recv(len(_PULL) + _COUNT_BYTES):
        count = int.from_bytes(request[len(_PULL) :], "little")
        indices, rows = shared.indices[:count], shared.rows[:count]
        if request.startswith(_PULL):
            torch.index_select(table, 0, indices, out=rows)
        else:
            _step(table, squares, indices, rows)
        connection.sendall(_DONE)


def _step(table: Tensor, squares: Tensor, indices: Tensor, gradients: Tensor) -> None:
    """One of Adagrad, of rows that come once each."""
    sums = squares.index_select(0, indices).addcmul_(gradients, gradients)
    put(squares, indices, sums)
    deviations = sums.sqrt_().add_(_EPSILON)
    values = table.index_select(0, indices)
    put(table, indices, values.addcdiv_(gradients, deviations, value=-_RATE))


if __name__ == "__main__":
    serve(contestant)
