"""Rows of a variable on a server: `... benchmarks.peers.stratagem.lookups FD`.

As with embedding tables, each row of a batch travels once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.peers.lookups import answers
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.row_batches import LOOKUPS, ROWS, WIDTH
from benchmarks.peers.stratagem.server import connected, created, program
from stratagem._servers import reading, reads, updates
from stratagem._servers.group import ServerGroup
from stratagem_proto.rows import distinct

_NAME = "table"


class Rows:
    """Requests for rows; as `Table`."""

    def __init__(self, servers: ServerGroup) -> None:
        self._servers = servers
        self._gradients = torch.ones(LOOKUPS, WIDTH)
        self._adagrad = program(torch.optim.Adagrad([torch.zeros(1)]))
        created(servers, {_NAME: torch.zeros(ROWS, WIDTH)})

    def pull(self, indices: torch.Tensor) -> torch.Tensor:
        """Reads each row once, and repeats it where it is asked for again."""
        rows, places = distinct(indices)
        values = torch.empty(len(rows), WIDTH)
        wanted = reading.Reading(_NAME, values, rows=rows)
        self._servers.call(0, reads.read([wanted]))
        return values.index_select(0, places)

    def push(self, indices: torch.Tensor) -> None:
        """Adds up what is for the same row; the server steps Adagrad."""
        rows, places = distinct(indices)
        sums = torch.zeros(len(rows), WIDTH).index_add_(0, places, self._gradients)
        gradient = updates.Gradient(_NAME, sums, group=0, rows=rows)
        self._servers.call(0, updates.step(self._adagrad, [gradient]))


@contextmanager
def contestant() -> Iterator[Answer]:
    """What has a server with a table."""
    with connected() as servers:
        yield answers(Rows(servers), torch.from_numpy)


if __name__ == "__main__":
    serve(contestant)
