"""Adam here, with a copy before and behind it.

`... benchmarks.peers.limits.resnet FD TENSORS`

The copies are what any server needs at least: of the gradients, and of the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from benchmarks.peers import resnet, timing
from benchmarks.peers.process import Answer, serve


@contextmanager
def contestant(tensors: str) -> Iterator[Answer]:
    """What takes a step."""
    torch.set_num_threads(1)
    shapes = resnet.shapes()[: int(tensors)]
    pushed, received, values, pulled = ([torch.zeros(shape) for shape in shapes] for _ in range(4))
    for value, gradient in zip(values, received, strict=True):
        value.grad = gradient
    adam = torch.optim.Adam(values, fused=True)

    def step() -> None:
        _copy(pushed, received)
        adam.step()
        _copy(values, pulled)

    yield timing.answering(step)


def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


if __name__ == "__main__":
    serve(contestant)
