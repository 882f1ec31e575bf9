"""torch.distributed.rpc: `python -m benchmarks.crashes.torch_rpc`."""

from __future__ import annotations

import os
import sys
import time
from tempfile import TemporaryDirectory

import torch
from torch.distributed import rpc

from benchmarks.crashes.trial import UPDATES, ServerProcess, found

_SERVER, _CLIENT = "server", "client"
_CALL_SECONDS = 20.0
_counts: list[torch.Tensor] = [torch.tensor(0.0)]


def add() -> None:
    """Add 1, on the server."""
    _counts[0] += 1


def read() -> float:
    """Return the sum, on the server."""
    return float(_counts[0])


def _connect(rank: int, file: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{file}")
    name = (_SERVER, _CLIENT)[rank]
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def _serve(file: str) -> None:
    _connect(0, file)
    time.sleep(1000)


def main() -> None:
    """Add to a tensor, kill the server, and tell what is there."""
    with TemporaryDirectory() as folder:
        file = os.path.join(folder, "init")
        server = ServerProcess("benchmarks.crashes.torch_rpc", file)
        try:
            _connect(1, file)
            for _ in range(UPDATES):
                rpc.rpc_sync(_SERVER, add, timeout=_CALL_SECONDS)
            server.restart()
            time.sleep(10.0)  # it cannot tell when it is ready
            found(
                lambda: rpc.rpc_sync(_SERVER, add, timeout=_CALL_SECONDS),
                lambda: float(rpc.rpc_sync(_SERVER, read, timeout=_CALL_SECONDS)),
            ).tell()
        finally:
            server.end()
            os._exit(0)  # its shutdown would wait for the server


if __name__ == "__main__":
    _serve(sys.argv[1]) if len(sys.argv) > 1 else main()
