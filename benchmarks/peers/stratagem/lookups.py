"""Rows of a variable on a server: `... benchmarks.peers.stratagem.lookups FD`.

They are read as they are asked for, as a lookup without gradients is, and a gradient is sent for
each row once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.peers.lookups import answers
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.row_batches import LOOKUPS, ROWS, WIDTH
from benchmarks.peers.stratagem.server import connected, created, program
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests import reads, updates
from stratagem_proto.rows import summed

_NAME = "table"


class Rows:
    """Requests for rows; as `Table`."""

    def __init__(self, servers: ServerGroup) -> None:
        self._servers = servers
        self._gradients = torch.ones(LOOKUPS, WIDTH)
        self._adagrad = program(torch.optim.Adagrad([torch.zeros(1)]))
        created(servers, {_NAME: torch.zeros(ROWS, WIDTH)})

    def pull(self, indices: torch.Tensor) -> torch.Tensor:
        """Reads a row for each index."""
        values = torch.empty(len(indices), WIDTH)
        wanted = reads.RowsReading([_NAME], [indices], values)
        self._servers.call(0, reads.read([wanted]))
        return values

    def push(self, indices: torch.Tensor) -> None:
        """Adds up what is for the same row; the server steps Adagrad."""
        rows, sums = summed(indices, self._gradients)
        gradient = updates.SentGradient(_NAME, sums, group=0, rows=rows)
        self._servers.call(0, updates.step(self._adagrad, [gradient]))


@contextmanager
def contestant() -> Iterator[Answer]:
    """What has a server with a table."""
    with connected() as servers:
        yield answers(Rows(servers), torch.from_numpy)


if __name__ == "__main__":
    serve(contestant)
