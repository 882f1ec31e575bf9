"""gRPC with bytes in place of rows: `... benchmarks.peers.limits.lookups FD`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import grpc
import numpy as np

from benchmarks.peers.limits import grpc_echo
from benchmarks.peers.lookups import answers
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.row_batches import WIDTH, Indices
from benchmarks.peers.server import server

_INDEX_BYTES, _ROW_BYTES = 8, 4 * WIDTH


class Bytes:
    """As many as rows take; as `Table`, with a number of rows for a batch."""

    def __init__(self, channel: grpc.Channel) -> None:
        # What is sent is made once: to make it is no limit of gRPC.
        self._exchange = cache(partial(grpc_echo.exchange, channel))

    def pull(self, rows: int) -> None:
        """Sends indices and receives rows."""
        self._exchange(rows * _INDEX_BYTES, rows * _ROW_BYTES)()

    def push(self, rows: int) -> None:
        """Sends both and receives nothing."""
        self._exchange(rows * (_INDEX_BYTES + _ROW_BYTES), 0)()


def _different(indices: Indices) -> int:
    return len(np.unique(indices))


@contextmanager
def contestant() -> Iterator[Answer]:
    """What moves bytes."""
    with server(grpc_echo.run) as address, grpc_echo.open_channel(address) as channel:
        yield answers(Bytes(channel), _different)


if __name__ == "__main__":
    serve(contestant)
