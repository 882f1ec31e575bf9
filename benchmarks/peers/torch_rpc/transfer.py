"""torch.distributed.rpc: `... benchmarks.peers.torch_rpc.transfer FD update`.

With `plain` a push is a call that gets the gradient and does nothing with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.distributed import rpc

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.server import server
from benchmarks.peers.transfer import Transfers

_SERVER, _CLIENT = "server", "client"
_RATE = 0.1

_variables: dict[int, Tensor] = {}


class Calls:
    """Calls to the server; as `Transfer`."""

    def __init__(self, pushed: Callable[[Tensor], None], nbytes: int) -> None:
        self._pushed = pushed
        self._gradient = torch.ones(nbytes // 4)
        rpc.rpc_sync(_SERVER, _create, args=(nbytes // 4,))

    def push(self) -> None:
        """Calls what takes the gradient."""
        rpc.rpc_sync(_SERVER, self._pushed, args=(self._gradient,))

    def pull(self) -> None:
        """Gets the variable, in memory of its own each time."""
        rpc.rpc_sync(_SERVER, _read, args=(self._gradient.numel(),))

    def close(self) -> None:
        """Frees the variable."""
        rpc.rpc_sync(_SERVER, _delete, args=(self._gradient.numel(),))


def update(gradient: Tensor) -> None:
    """Takes a step of SGD, on the server."""
    _variables[gradient.numel()].add_(gradient, alpha=-_RATE)


def plain(gradient: Tensor) -> None:
    """Does nothing, on the server."""


def _create(elements: int) -> None:
    _variables[elements] = torch.zeros(elements)


def _read(elements: int) -> Tensor:
    return _variables[elements]


def _delete(elements: int) -> None:
    del _variables[elements]


@contextmanager
def connected(rank: int, file: str) -> Iterator[None]:
    """This process as one of two that call each other."""
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{file}")
    name = (_SERVER, _CLIENT)[rank]
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
    yield
    rpc.shutdown(graceful=False)


def run(parent: Connection, file: str) -> None:
    """Serves, in a process of its own; see `server`."""
    parent.send(file)
    with connected(0, file):
        # Until the client has gone.
        parent.poll(None)


@contextmanager
def contestant(kind: str) -> Iterator[Answer]:
    """What is connected to a server of its own."""
    pushed = {"update": update, "plain": plain}[kind]
    with TemporaryDirectory() as folder:
        file = os.path.join(folder, "rendezvous")
        with server(run, file), connected(1, file):
            yield Transfers(partial(Calls, pushed))


if __name__ == "__main__":
    # Calls travel by the name of their function, which the server has to know too.
    from benchmarks.peers.torch_rpc.transfer import contestant

    serve(contestant)
