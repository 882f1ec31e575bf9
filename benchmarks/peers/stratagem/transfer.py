"""One variable on a server: `... benchmarks.peers.stratagem.transfer FD`.

A push is an `Update` that steps SGD; a pull is a `Read` into memory that the client has. They are
the two requests of which a training step consists.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.stratagem.server import connected, created, program
from benchmarks.peers.transfer import Transfers
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests import reads, updates, variables


class Variable:
    """One variable on a server, and its gradient here; as `Transfer`."""

    def __init__(self, servers: ServerGroup, nbytes: int) -> None:
        self._servers = servers
        self._name = f"bytes.{nbytes}"
        self._value = torch.zeros(nbytes // 4)
        self._gradient = torch.ones(nbytes // 4)
        self._sgd = program(torch.optim.SGD([torch.zeros(1)], 0.1))
        created(servers, {self._name: self._value})

    def push(self) -> None:
        """Sends the gradient; the server steps SGD."""
        gradient = updates.SentGradient(self._name, self._gradient, group=0)
        self._servers.call(0, updates.step(self._sgd, [gradient]))

    def pull(self) -> None:
        """Reads the value in place."""
        self._servers.call(0, reads.read([reads.Reading(self._name, self._value)]))

    def close(self) -> None:
        """Frees the server's memory."""
        self._servers.call(0, variables.delete([self._name]))


@contextmanager
def contestant() -> Iterator[Answer]:
    """What has a server."""
    with connected() as servers:
        yield Transfers(partial(Variable, servers))


if __name__ == "__main__":
    serve(contestant)
