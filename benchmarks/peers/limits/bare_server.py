"""Training with a server that does only what a step needs.

`... benchmarks.peers.limits.bare_server FD FILE`

Gradients and values go through memory that both processes see, and a byte through a socket says
that they are there; nobody is identified, nothing is numbered or checked.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection

import torch
from torch import Tensor, multiprocessing

from benchmarks.peers import recommender, timing
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.ratings import TURN
from benchmarks.peers.server import server

_PUSHED, _DONE = b"<", b"!"


class Remote(torch.optim.Optimizer):
    """An optimizer that has a server step, and takes its values over.

    Args:
        parameters: What is trained.
        connection: To the server.
        gradients: Where the server finds those of the parameters.
        values: Where it leaves the values.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        connection: socket.socket,
        gradients: Sequence[Tensor],
        values: Sequence[Tensor],
    ) -> None:
        super().__init__(parameters, {})
        self._parameters, self._connection = parameters, connection
        self._gradients, self._values = gradients, values

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Takes a step there."""
        _copy([_gradient(each) for each in self._parameters], self._gradients)
        self._connection.sendall(_PUSHED)
        self._connection.recv(len(_DONE))
        _copy(self._values, self._parameters)


@contextmanager
def contestant(file: str) -> Iterator[Answer]:
    """What takes a step."""
    torch.set_num_threads(1)
    multiprocessing.set_sharing_strategy("file_descriptor")
    model = recommender.Recommender()
    parameters = list(model.parameters())
    gradients, values = _shared(parameters), _shared(parameters)
    mine, theirs = socket.socketpair()
    with closing(mine), server(_serve, theirs, gradients, values):
        theirs.close()
        remote = Remote(parameters, mine, gradients, values)
        step = recommender.stepping(model, remote)
        batches = recommender.drawn(file)
        turn = timing.repeated(lambda: step(*next(batches)), TURN)
        yield timing.answering(turn, each=TURN)


def _shared(parameters: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(each).share_memory_() for each in parameters]


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "the step comes after a backward pass"
    return parameter.grad


def _copy(sources: Sequence[Tensor], destinations: Sequence[Tensor]) -> None:
    for source, destination in zip(sources, destinations, strict=True):
        destination.copy_(source)


def _serve(
    parent: Connection,
    connection: socket.socket,
    gradients: Sequence[Tensor],
    values: Sequence[Tensor],
) -> None:
    torch.set_num_threads(1)
    model = recommender.Recommender()
    optimizer, parameters = recommender.adamw(model), list(model.parameters())
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    parent.send("ready")
    while connection.recv(len(_PUSHED)):
        optimizer.step()
        _copy([each.detach() for each in parameters], values)
        connection.sendall(_DONE)


if __name__ == "__main__":
    serve(contestant)
