"""gRPC with bytes in place of rows: `... benchmarks.peers.limits.lookups FD`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import NamedTuple

import grpc
import numpy as np

from benchmarks.peers.limits import grpc_echo
from benchmarks.peers.lookups import answers
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.row_batches import WIDTH, Indices
from benchmarks.peers.server import server

_INDEX_BYTES, _ROW_BYTES = 8, 4 * WIDTH


class Counts(NamedTuple):
    """How many rows a batch asks for, and how many different ones."""

    all: int
    different: int

    @classmethod
    def of(cls, indices: Indices) -> Counts:
        """Counts those of a batch."""
        return cls(len(indices), len(np.unique(indices)))


class Bytes:
    """As many as rows take; as `Table`, with numbers of rows for a batch."""

    def __init__(self, channel: grpc.Channel) -> None:
        # What is sent is made once: to make it is no limit of gRPC.
        self._exchange = cache(partial(grpc_echo.exchange, channel))

    def pull(self, counts: Counts) -> None:
        """Sends indices and receives rows."""
        self._exchange(counts.all * _INDEX_BYTES, counts.all * _ROW_BYTES)()

    def push(self, counts: Counts) -> None:
        """Sends both and receives nothing."""
        self._exchange(counts.different * (_INDEX_BYTES + _ROW_BYTES), 0)()


@contextmanager
def contestant() -> Iterator[Answer]:
    """What moves bytes."""
    with server(grpc_echo.run) as address, grpc_echo.open_channel(address) as channel:
        yield answers(Bytes(channel), Counts.of)


if __name__ == "__main__":
    serve(contestant)
