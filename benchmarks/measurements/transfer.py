"""Pushing gradients to a server and pulling values from it, beside the limits.

The server and the socket's other end are processes of their own on loopback, with one
torch thread each. A push is an `Update` that runs SGD on the whole variable; a pull is
a `Read` into memory that the client has. Both are measured below the strategy, at the
two requests of which a training step consists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from benchmarks.harness.report import Table
from benchmarks.harness.turns import Sample, alternate, timed
from benchmarks.peers import limits
from stratagem._servers import reads, updates, writes
from stratagem._servers.group import ServerGroup
from stratagem._servers.session import Identity
from stratagem_deploy import LocalCluster
from stratagem_proto.optimizers import rule_named
from stratagem_proto.tensors import spec_of
from stratagem_proto.update_programs import encode_group
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec

SIZES = (100_000, 1_000_000, 10_000_000, 100_000_000)
_SGD = OptimizerProgram(
    name="SGD",
    class_name="SGD",
    groups=[
        encode_group(
            rule_named("SGD"), torch.optim.SGD([torch.zeros(1)], 0.1).param_groups[0]
        )
    ],
)


@dataclass(frozen=True)
class Row:
    """What one size and direction took, beside the limits of the same run.

    Attributes:
        direction: "push + SGD" or "pull".
        nbytes: Size of the variable in bytes.
        gb_per_second: Median rate in 10^9 bytes a second.
        spread: Interquartile range of the durations over their median.
        of_socket: Rate relative to the bare TCP socket's in the same direction.
        of_memcpy: Rate relative to a copy in memory.
    """

    direction: str
    nbytes: int
    gb_per_second: float
    spread: float
    of_socket: float
    of_memcpy: float


class Client:
    """One variable on a server, and its gradient here."""

    def __init__(self, servers: ServerGroup, nbytes: int) -> None:
        self._servers = servers
        self._name = f"bytes.{nbytes}"
        self._value = torch.zeros(nbytes // 4)
        self._gradient = torch.ones(nbytes // 4)
        spec = VariableSpec(
            name=self._name,
            tensor=spec_of(self._value),
            trainable=True,
            kind=VARIABLE_KIND_MODEL,
        )
        servers.call(0, writes.create([spec], [self._value]))

    def push(self) -> None:
        """Sends the gradient; the server steps SGD."""
        gradient = updates.Gradient(self._name, self._gradient, group=0)
        self._servers.call(0, updates.step(_SGD, [gradient]))

    def pull(self) -> None:
        """Reads the value in place."""
        self._servers.call(0, reads.read([reads.Reading(self._name, self._value)]))

    def delete(self) -> None:
        """Frees the server's memory."""
        self._servers.call(0, writes.delete([self._name]))


def measure(
    sizes: Sequence[int], rounds: int, report: Callable[[str], None]
) -> list[Row]:
    """Times both directions at each size, alternating with the limits.

    Args:
        sizes: Sizes of the variable in bytes.
        rounds: Runs of each after warming up.
        report: Told what is measured next.
    """
    torch.set_num_threads(1)
    rows: list[Row] = []
    with _server() as servers, limits.raw_socket() as raw:
        for nbytes in sizes:
            report(f"{nbytes / 1e6:g} MB")
            rows += _measure_size(servers, raw, nbytes, rounds)
    return rows


def table(rows: Sequence[Row]) -> Table:
    """The figures as people read them."""
    columns = ("", "MB", "GB/s", "spread", "of a socket", "of a memcpy")
    return Table(columns, [*map(_cells, rows)])


def _cells(row: Row) -> Sequence[str]:
    figures = (row.gb_per_second, row.spread, row.of_socket, row.of_memcpy)
    cells = (f"{figure:.2f}" for figure in figures)
    return row.direction, f"{row.nbytes / 1e6:g}", *cells


@contextmanager
def _server() -> Iterator[ServerGroup]:
    with LocalCluster(ps=1, workers=1, processes=True) as cluster:
        resolver = cluster.cluster_resolver
        address = resolver.cluster_spec().task_address("ps", 0)
        identity = Identity(ROLE_CHIEF, "chief", 0, resolver.cluster_token or "")
        servers = ServerGroup([address], identity)
        yield servers
        servers.close()


def _measure_size(
    servers: ServerGroup, raw: limits.RawSocket, nbytes: int, rounds: int
) -> list[Row]:
    client = Client(servers, nbytes)
    timings = alternate(
        {
            "push + SGD": timed(client.push),
            "socket push": timed(lambda: raw.push(nbytes)),
            "pull": timed(client.pull),
            "socket pull": timed(lambda: raw.pull(nbytes)),
            "memcpy": timed(lambda: limits.memcpy(nbytes)),
        },
        rounds,
    )
    client.delete()
    memcpy = timings["memcpy"]
    return [
        _row(
            "push + SGD", nbytes, timings["push + SGD"], timings["socket push"], memcpy
        ),
        _row("pull", nbytes, timings["pull"], timings["socket pull"], memcpy),
    ]


def _row(direction: str, nbytes: int, ours: Sample, raw: Sample, memcpy: Sample) -> Row:
    return Row(
        direction,
        nbytes,
        gb_per_second=nbytes / ours.median / 1e9,
        spread=ours.spread,
        of_socket=raw.median / ours.median,
        of_memcpy=memcpy.median / ours.median,
    )
