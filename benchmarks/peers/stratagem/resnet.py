"""A step of Adam on a server: `... benchmarks.peers.stratagem.resnet FD TENSORS`.

Gradients of all variables are pushed in one request, and values pulled in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.peers import resnet, timing
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.stratagem.server import connected, created, program
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests import reads, updates


@contextmanager
def contestant(tensors: str) -> Iterator[Answer]:
    """What takes a step."""
    with connected() as servers:
        yield timing.answering(_stepping(servers, int(tensors)))


def _stepping(servers: ServerGroup, tensors: int) -> Callable[[], None]:
    values = {
        f"parameter.{i}": torch.zeros(shape) for i, shape in enumerate(resnet.shapes()[:tensors])
    }
    adam = program(torch.optim.Adam([torch.zeros(1)], fused=True))
    created(servers, values)
    gradients = [
        updates.SentGradient(name, torch.ones_like(value), group=0)
        for name, value in values.items()
    ]
    readings = [reads.Reading(name, value) for name, value in values.items()]

    def step() -> None:
        servers.call(0, updates.step(adam, gradients))
        servers.call(0, reads.read(readings))

    return step


if __name__ == "__main__":
    serve(contestant)
