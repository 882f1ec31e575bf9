"""A copy between two warm buffers: `... benchmarks.peers.limits.memory FD`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.transfer import Transfers


class Copy:
    """Either direction is a copy; as `Transfer`."""

    def __init__(self, nbytes: int) -> None:
        self._source, self._destination = torch.zeros(2, nbytes, dtype=torch.uint8)
        self.push()

    def push(self) -> None:
        """Copies the bytes."""
        self._destination.copy_(self._source)

    pull = push

    def close(self) -> None:
        """Leaves the buffers to the next one."""


@contextmanager
def contestant() -> Iterator[Answer]:
    """What copies."""
    torch.set_num_threads(1)
    yield Transfers(Copy)


if __name__ == "__main__":
    serve(contestant)
