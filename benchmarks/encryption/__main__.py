"""`python -m benchmarks.encryption`: what it costs that both ends show certificates and encrypt."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Annotated

import torch
import typer
from tqdm import trange

from benchmarks.harness.table import Table
from stratagem import ParameterServerStrategy, Variable
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.session import Identity
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_rpc.channel import GRPC, TCP, TRANSPORT_VARIABLE, UNIX, Deadlines

_SMALL, _LARGE = 4, 2_500_000
_SMALL_TIMES, _LARGE_TIMES, _OPENINGS = 300, 10, 20

Times = Mapping[str, float]
"""The median time of each request, in seconds, by what it is."""


def measure(resolver: ClusterResolver) -> Times:
    """Measure requests to one server, as a worker of its cluster."""
    with ParameterServerStrategy(resolver) as strategy:
        with strategy.scope():
            small = Variable(torch.zeros(_SMALL), False, name="small")
            large = Variable(torch.zeros(_LARGE), False, name="large")
        one, many = torch.ones(_SMALL), torch.ones(_LARGE)
        return {
            "assign 16 bytes": _timed(lambda: small.assign(one), _SMALL_TIMES),
            # What has not changed is not read again.
            "read 16 bytes": _timed(small.numpy, _SMALL_TIMES, lambda: small.assign(one)),
            "add 10 MB": _timed(lambda: large.assign_add(many), _LARGE_TIMES),
            "assign 10 MB": _timed(lambda: large.assign(many), _LARGE_TIMES),
            "read 10 MB": _timed(large.numpy, _LARGE_TIMES, lambda: large.assign(many)),
            "open a session": _timed(lambda: _opened(resolver), _OPENINGS),
        }


def _opened(resolver: ClusterResolver) -> None:
    (address,) = resolver.cluster_spec().job_tasks("ps")
    chief = Identity(ROLE_CHIEF, "worker", 0, resolver.cluster_token or "")
    connection = Connection(0, str(address), chief, Deadlines())
    connection.open()
    connection.close()


def _nothing() -> None:
    """Do nothing."""


def _timed(act: Callable[[], object], times: int, before: Callable[[], object] = _nothing) -> float:
    _seconds(act, before)
    return median(_seconds(act, before) for _ in range(times))


def _seconds(act: Callable[[], object], before: Callable[[], object]) -> float:
    before()
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Alternated runs of each way.")] = 7,
    ways: Annotated[list[str], typer.Option("--way", help="Once for each way.")] = [  # noqa: B006
        GRPC,
        TCP,
        UNIX,
    ],
) -> None:
    """Compare requests with certificates with the same ones without.

    Between processes of one host certificates cost nothing but the handshake, since what passes
    there goes by a Unix socket; so this has them use gRPC and the data port as well, as hosts do
    between them.
    """
    runs = {f"{way}, {what}": (way, tls) for way in ways for what, tls in _WHAT.items()}
    found: dict[str, list[Times]] = {name: [] for name in runs}
    for _ in trange(rounds, unit="round"):
        for name, (way, tls) in runs.items():
            found[name].append(_measured(way, tls))
    print(_table(found).markdown())


_WHAT = {"plain": False, "with certificates": True}


def _measured(way: str, tls: bool) -> Times:
    before = os.environ.get(TRANSPORT_VARIABLE)
    with ExitStack() as stack:
        stack.callback(_set, before)
        _set(way)
        cluster = stack.enter_context(LocalCluster(1, processes=True, tls=tls))
        times: Sequence[Times] = cluster.run(measure)
        return times[0]


def _set(way: str | None) -> None:
    if way is None:
        os.environ.pop(TRANSPORT_VARIABLE, None)
    else:
        os.environ[TRANSPORT_VARIABLE] = way


def _table(found: Mapping[str, Sequence[Times]]) -> Table:
    """A row for each request: the median of its times in ms, and the ratio to those without."""
    names = [*found]
    medians = {
        name: {what: median(each[what] for each in times) for what in times[0]}
        for name, times in found.items()
    }
    rows = []
    for what in medians[names[0]]:
        row = [what]
        for plain, encrypted in zip(names[::2], names[1::2], strict=True):
            without, with_them = medians[plain][what], medians[encrypted][what]
            cells = f"{without * 1e3:.3g}", f"{with_them * 1e3:.3g}", f"{with_them / without:.2f}"
            row += cells
        rows.append(row)
    headings = [""]
    for plain, encrypted in zip(names[::2], names[1::2], strict=True):
        headings += [f"{plain}, ms", f"{encrypted}, ms", "ratio"]
    return Table(headings, rows)


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)
