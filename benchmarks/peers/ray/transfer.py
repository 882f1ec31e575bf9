"""An actor of Ray that keeps a variable: `... benchmarks.peers.ray.transfer FD`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
import torch

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.transfer import Transfers

_RATE = 0.1


class Server:
    """The variable. Arrays come and go through shared memory."""

    def __init__(self, elements: int) -> None:
        torch.set_num_threads(1)
        self._value = torch.zeros(elements)

    def push(self, gradient: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Takes a step of SGD."""
        self._value.add_(torch.from_numpy(gradient), alpha=-_RATE)

    def pull(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Returns the value, which the caller finds in shared memory."""
        return self._value.numpy()


class Actor:
    """Calls of the actor's methods; as `Transfer`."""

    def __init__(self, nbytes: int) -> None:
        self._gradient = np.ones(nbytes // 4, np.float32)
        self._server = ray.remote(Server).remote(nbytes // 4)

    def push(self) -> None:
        """Sends the gradient."""
        ray.get(self._server.push.remote(self._gradient))

    def pull(self) -> None:
        """Gets the value, without a copy out of shared memory."""
        ray.get(self._server.pull.remote())

    def close(self) -> None:
        """Ends the actor's process."""
        ray.kill(self._server)


@contextmanager
def contestant() -> Iterator[Answer]:
    """What calls actors."""
    ray.init(
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONWARNINGS": "ignore"}},
    )
    yield Transfers(Actor)


if __name__ == "__main__":
    serve(contestant)
