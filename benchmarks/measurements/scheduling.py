"""Closures on worker servers, beside those of other coordinators.

Worker servers and one parameter server are processes of their own on loopback. Each
coordinator schedules closures that do nothing, and closures that add 10 numbers to a
variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness.report import Table
from benchmarks.harness.turns import Sample, alternate
from benchmarks.peers.process import Peer, peer

CLOSURES = ("nothing", "update")
OURS = "stratagem"


@dataclass(frozen=True)
class Row:
    """What one coordinator took for one kind of closure.

    Attributes:
        closure: "nothing" or "update".
        workers: Number of worker servers.
        coordinator: Whose coordinator.
        rate: Median of closures per second while many are scheduled.
        rate_spread: Interquartile range of the rates over their median.
        rate_ratio: Our rate relative to this one.
        trip: Median of seconds for `schedule` and `fetch` of one closure.
        trip_spread: Interquartile range of these over their median.
        trip_ratio: Our time relative to this one.
        cost: Median of seconds of processors for one closure, in all processes.
        cost_spread: Interquartile range of these over their median.
        cost_ratio: Our cost relative to this one.
    """

    closure: str
    workers: int
    coordinator: str
    rate: float
    rate_spread: float
    rate_ratio: float
    trip: float
    trip_spread: float
    trip_ratio: float
    cost: float
    cost_spread: float
    cost_ratio: float


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        workers: Numbers of worker servers.
        rounds: Runs of each coordinator after warming up.
        seconds: About how long a run takes.
    """

    workers: Sequence[int] = (1, 2, 4)
    rounds: int = 7
    seconds: float = 0.5


def measure(
    extent: Extent, pythons: Mapping[str, Path], report: Callable[[str], None]
) -> list[Row]:
    """Measures coordinators in turns, for each number of workers.

    Args:
        extent: How much.
        pythons: The interpreter of each coordinator; ours is "stratagem".
        report: Told what is measured next.
    """
    rows: list[Row] = []
    for workers in extent.workers:
        report(f"{workers} workers")
        with _peers(pythons, workers) as peers:
            for closure in CLOSURES:
                samples = {
                    kind: _turns(peers, f"{kind} {closure}", extent)
                    for kind in ("rate", "round trip", "cost")
                }
                rows += [_row(closure, workers, name, samples) for name in peers]
    return rows


def table(rows: Sequence[Row]) -> Table:
    """The figures as people read them."""
    columns = ["closure", "workers", "coordinator"]
    for figure in ("closures/s", "round trip, ms", "processors, ms"):
        columns += figure, "spread", "ratio"
    return Table(columns, [*map(_cells, rows)])


@contextmanager
def _peers(pythons: Mapping[str, Path], workers: int) -> Iterator[dict[str, Peer]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                peer(python, f"benchmarks.peers.{name}_coordinator", str(workers))
            )
            for name, python in pythons.items()
        }


def _turns(peers: Mapping[str, Peer], what: str, extent: Extent) -> dict[str, Sample]:
    contestants = {
        name: partial(peer.measure, what, extent.seconds)
        for name, peer in peers.items()
    }
    return alternate(contestants, extent.rounds)


def _row(
    closure: str,
    workers: int,
    coordinator: str,
    samples: Mapping[str, Mapping[str, Sample]],
) -> Row:
    rates, trips, costs = samples["rate"], samples["round trip"], samples["cost"]
    rate, trip, cost = (each[coordinator] for each in (rates, trips, costs))
    return Row(
        closure,
        workers,
        coordinator,
        rate=rate.median,
        rate_spread=rate.spread,
        rate_ratio=rates[OURS].median / rate.median,
        trip=trip.median,
        trip_spread=trip.spread,
        trip_ratio=trips[OURS].median / trip.median,
        cost=cost.median,
        cost_spread=cost.spread,
        cost_ratio=costs[OURS].median / cost.median,
    )


def _cells(row: Row) -> Sequence[str]:
    return (
        row.closure,
        str(row.workers),
        row.coordinator,
        f"{row.rate:.0f}",
        f"{row.rate_spread:.2f}",
        f"{row.rate_ratio:.2f}",
        f"{row.trip * 1e3:.2f}",
        f"{row.trip_spread:.2f}",
        f"{row.trip_ratio:.2f}",
        f"{row.cost * 1e3:.2f}",
        f"{row.cost_spread:.2f}",
        f"{row.cost_ratio:.2f}",
    )
