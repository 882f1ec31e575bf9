"""MXNet's key-value store `dist_sync`: `... benchmarks.peers.mxnet.transfer FD`."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.transfer import Transfers

_RATE = 0.1
_keys = itertools.count()


class Store:
    """A key of the store; as `Transfer`, but that a push does not wait.

    Only a push with a pull behind it has an end that can be waited for.
    """

    def __init__(self, store: Any, nbytes: int) -> None:
        import mxnet

        self._store, self._key = store, next(_keys)
        self._gradient = mxnet.nd.ones((nbytes // 4,))
        self._value = mxnet.nd.zeros((nbytes // 4,))
        store.init(self._key, self._value)

    def push(self) -> None:
        """Begins to send the gradient, with which the server steps SGD."""
        self._store.push(self._key, self._gradient)

    def pull(self) -> None:
        """Gets the value in place, behind what was pushed."""
        self._store.pull(self._key, out=self._value)
        self._value.wait_to_read()

    def close(self) -> None:
        """Does nothing, as the store keeps its keys."""


@contextmanager
def contestant() -> Iterator[Answer]:
    """What is connected to a scheduler and a server of its own."""
    with _cluster() as environment:
        os.environ.update(environment, DMLC_ROLE="worker")
        # The store says goodbye to the server, so it ends before that does.
        with _store() as answer:
            yield answer


@contextmanager
def _store() -> Iterator[Answer]:
    # It takes its role while it is imported.
    import mxnet

    store = mxnet.kv.create("dist_sync")
    store.set_optimizer(mxnet.optimizer.SGD(learning_rate=_RATE))
    yield Transfers(partial(Store, store))


@contextmanager
def _cluster() -> Iterator[dict[str, str]]:
    """A scheduler and a server; yields the environment in which to join them."""
    environment = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", "import mxnet; mxnet.kv.create('dist_sync')"],
            env={**os.environ, **environment, "DMLC_ROLE": role},
        )
        for role in ("scheduler", "server")
    ]
    try:
        yield environment
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(contestant)
