"""gRPC with bytes in place of rows: `... benchmarks.peers.limits.lookups FD`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import grpc
import numpy as np

from benchmarks.peers.limits import grpc_echo
from benchmarks.peers.lookups import answers
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.row_batches import WIDTH, Indices
from benchmarks.peers.server import server

_INDEX_BYTES, _ROW_BYTES = 8, 4 * WIDTH


class Bytes:
    """As many as different rows take; as `Table`."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def pull(self, indices: Indices) -> None:
        """Sends indices and receives rows."""
        rows = _different(indices.tobytes())
        grpc_echo.exchange(self._channel, rows * _INDEX_BYTES, rows * _ROW_BYTES)()

    def push(self, indices: Indices) -> None:
        """Sends both and receives nothing."""
        rows = _different(indices.tobytes())
        grpc_echo.exchange(self._channel, rows * (_INDEX_BYTES + _ROW_BYTES), 0)()


@cache
def _different(indices: bytes) -> int:
    return len(np.unique(np.frombuffer(indices, np.int64)))


@contextmanager
def contestant() -> Iterator[Answer]:
    """What moves bytes."""
    with server(grpc_echo.run) as address, grpc_echo.open_channel(address) as channel:
        yield answers(Bytes(channel))


if __name__ == "__main__":
    serve(contestant)
