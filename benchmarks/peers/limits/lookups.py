"""gRPC with bytes in place of rows: `... benchmarks.peers.limits.lookups FD`."""

from __future__ import annotations

from functools import cache

import grpc
import numpy as np

from benchmarks.peers.limits import grpc_echo
from benchmarks.peers.lookups import answers
from benchmarks.peers.process import serve
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


if __name__ == "__main__":
    with server(grpc_echo.run) as address, grpc_echo.open_channel(address) as channel:
        serve(answers(Bytes(channel)))
