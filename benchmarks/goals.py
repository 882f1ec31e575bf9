"""What is to be reached, as ratios of figures from the same run.

What was reached stays: `floors.py` has the least that `make bench-quick` accepts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.floors import FLOORS
from benchmarks.harness.contest import Cell, Figure

_PEERS_OF_TRANSFERS = {"TensorFlow": 3.0, "Ray": 2.0, "torch RPC": 1.5}
_SIZES = ("1 MB", "10 MB", "100 MB")
_LARGE = _SIZES[1:]


@dataclass(frozen=True)
class Goal:
    """By how much a figure is to be better than another, or than a number.

    Attributes:
        measurement: Name of the measurement that has the figures.
        ours: The figure, of which less is better.
        theirs: What it is compared with.
        at_least: The least ratio of theirs to ours.
    """

    measurement: str
    ours: Cell
    theirs: Cell | float
    at_least: float

    @property
    def name(self) -> str:
        """What tables call it, and by what its floor is found."""
        ours = f"{self.ours.contestant}, {self.ours.question}"
        if isinstance(self.theirs, float):
            return f"{ours}: of {self.theirs:,.10g}"
        who = self.theirs.contestant
        if who == self.ours.contestant:
            who = self.theirs.question
        return f"{ours}: of {who}"

    @property
    def floor(self) -> float | None:
        """What is kept of it; None as long as it was not reached."""
        return FLOORS.get(self.measurement, {}).get(self.name)

    @property
    def cells(self) -> Collection[Cell]:
        """The figures that it takes."""
        return (
            {self.ours} if isinstance(self.theirs, float) else {self.ours, self.theirs}
        )

    def ratio(self, figures: Sequence[Figure]) -> float | None:
        """Theirs over ours; None if either was not measured."""
        found = {each.cell: each.median for each in figures}
        ours = found.get(self.ours)
        theirs = (
            self.theirs if isinstance(self.theirs, float) else found.get(self.theirs)
        )
        return theirs / ours if theirs and ours else None


def _transfers() -> Iterator[Goal]:
    for direction in ("push + SGD", "pull"):
        for size in _SIZES:
            question = f"{direction} {size}"
            for peer, least in _PEERS_OF_TRANSFERS.items():
                yield _beside("transfer", question, peer, least)
        for size in _LARGE:
            yield _beside("transfer", f"{direction} {size}", "memcpy", 0.4)
    for size in _SIZES:
        yield _beside("transfer", f"push + SGD + pull {size}", "MXNet", 2.0)


def _transfers_over_tcp() -> Iterator[Goal]:
    for direction, least in {"push + SGD": 0.45, "pull": 0.5}.items():
        for size in _LARGE:
            question = f"{direction} {size}"
            yield _beside("transfer", question, "TCP socket", least, "Stratagem TCP")


def _small_updates() -> Iterator[Goal]:
    middle, tail = "round trip, median", "round trip, 99th percentile"
    yield _beside("small-updates", middle, "torch RPC plain", 1.0)
    ours, theirs = Cell(tail, "Stratagem"), Cell(middle, "Stratagem")
    yield Goal("small-updates", ours, theirs, 0.2)


def _resnet() -> Iterator[Goal]:
    question = "push + Adam + pull"
    yield _beside("resnet", question, "TensorFlow", 5.0)
    yield _beside("resnet", question, "local, with two copies", 1 / 1.5)


def _lookups() -> Iterator[Goal]:
    for direction in ("pull", "push + Adagrad"):
        for drawn in ("uniform", "Zipf(1.05)"):
            yield _beside("lookups", f"{direction}, {drawn}", "TensorFlow", 5.0)
            yield _beside("lookups", f"{direction}, {drawn}", "gRPC unary", 1 / 4)


def _movielens() -> Iterator[Goal]:
    yield _beside("movielens", "step", "local loop", 0.6)
    yield _beside("movielens", "step", "TensorFlow", 3.0)


def _workers() -> Iterator[Goal]:
    question = "processors, a million examples"
    for workers in ("2 workers", "4 workers"):
        yield _beside("workers", question, "1 worker", 1 / 1.1, workers)


def _sessions() -> Iterator[Goal]:
    idle = "idle sessions"
    yield _beside("sessions", "round trip, median", "no sessions", 1 / 1.1, idle)
    yield Goal("sessions", Cell("memory of the server, more by", idle), 100e6, 1.0)


def _startup() -> Iterator[Goal]:
    yield Goal("startup", Cell("import, behind torch", "Stratagem"), 0.15, 1.0)
    yield Goal("startup", Cell("server ready", "Stratagem"), 3.0, 1.0)


def _beside(
    measurement: str, question: str, peer: str, least: float, ours: str = "Stratagem"
) -> Goal:
    return Goal(measurement, Cell(question, ours), Cell(question, peer), least)


GOALS: Sequence[Goal] = (
    *_transfers(),
    *_transfers_over_tcp(),
    *_small_updates(),
    *_resnet(),
    *_lookups(),
    *_movielens(),
    *_workers(),
    *_sessions(),
    *_startup(),
)
