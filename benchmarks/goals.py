"""What is to be reached, of all that is measured.

`reached.py` says what was: `make bench-quick` fails where one of these is missed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.harness.figures import Cell
from benchmarks.harness.goal import Goal
from benchmarks.measurements import capacity
from benchmarks.reached import REACHED

_PEERS_OF_TRANSFERS = {"TensorFlow": 3.0, "Ray": 2.0, "torch RPC": 1.5}
_SIZES = ("1 MB", "10 MB", "100 MB")
_LARGE = _SIZES[1:]


def _transfers() -> Iterator[Goal]:
    for direction in ("push + SGD", "pull"):
        for peer, least in _PEERS_OF_TRANSFERS.items():
            yield from _sized(direction, _SIZES, peer, least)
        yield from _sized(direction, _LARGE, "memcpy", 0.4)
    yield from _sized("push + SGD + pull", _SIZES, "MXNet", 2.0)


def _sized(direction: str, sizes: Sequence[str], peer: str, least: float) -> Iterator[Goal]:
    about = f"{direction} of {', '.join(sizes)}"
    for size in sizes:
        yield _beside("transfer", f"{direction} {size}", peer, least, about)


def _transfers_over_tcp() -> Iterator[Goal]:
    for direction, least in {"push + SGD": 0.45, "pull": 0.5}.items():
        for goal in _sized(direction, _LARGE, "TCP socket", least):
            ours = replace(goal.ours, contestant="Stratagem TCP")
            yield replace(goal, ours=ours, about=f"{goal.about}, TCP only")


def _small_updates() -> Iterator[Goal]:
    middle, tail = "round trip, median", "round trip, 99th percentile"
    plain = _beside("small-updates", middle, "torch RPC plain", 1.0)
    yield replace(plain, wording="not above a plain call of torch RPC")
    ours, theirs = Cell(tail, "Stratagem"), Cell(middle, "Stratagem")
    wording = "at most 5 medians"
    yield Goal("small-updates", ours, theirs, 0.2, tail, wording)


def _resnet() -> Iterator[Goal]:
    question = "push + Adam + pull"
    yield _beside("resnet", question, "TensorFlow", 5.0)
    local = _beside("resnet", question, "local, with two copies", 1 / 1.5)
    yield replace(local, wording="at most 1.5 times the local step with two copies")


def _clicks() -> Iterator[Goal]:
    ours, joined = "26 Embedding", "TensorFlow, a variable a server"
    for size, workers, peer, least in (
        (1024, "1 worker", "TensorFlow", 1.4),
        (1024, "2 workers", "TensorFlow", 1.7),
        (4096, "1 worker", "TensorFlow", 1.0),
        (4096, "2 workers", "TensorFlow", 1.3),
        (1024, "1 worker", joined, 1.2),
        (1024, "1 worker", "local loop", 0.95),
        (4096, "1 worker", "local loop", 0.95),
    ):
        question = f"steady, {size}, {workers}"
        cells = Cell(question, ours), Cell(question, peer)
        yield Goal("clicks", *cells, least, question, f"{least:g} times {peer}")
    for question, most in {
        "processors, 1024, 1 worker": 55,
        "servers' processors, 1024": 15,
    }.items():
        wording = f"at most {most} s a million examples"
        yield Goal("clicks", Cell(question, ours), most * 1e-6, 1.0, question, wording)
    first = Cell("first pass, 1024", ours), Cell("steady, 1024, 1 worker", ours)
    yield Goal("clicks", *first, 1 / 1.5, "first pass, 1024", "at most 1.5 times a steady step")


def _lookups() -> Iterator[Goal]:
    for direction in ("pull", "push + Adagrad"):
        about = f"{direction}, uniform and Zipf(1.05)"
        for drawn in ("uniform", "Zipf(1.05)"):
            question = f"{direction}, {drawn}"
            yield _beside("lookups", question, "TensorFlow", 5.0, about)
            echo = _beside("lookups", question, "gRPC unary", 1 / 4, about)
            yield replace(echo, wording="under 4 times as many bytes by gRPC")


def _movielens() -> Iterator[Goal]:
    yield _beside("movielens", "step", "local loop", 0.6)
    late = _beside("movielens", "step", "local loop", 0.85, "step, one push in flight")
    ours = replace(late.ours, contestant="Stratagem, one in flight")
    yield replace(late, ours=ours)
    yield _beside("movielens", "step", "TensorFlow", 3.0)


def _workers() -> Iterator[Goal]:
    question = "processors, a million examples"
    theirs, wording = Cell(question, "1 worker"), "at most 10 % more than 1 worker"
    for steps in ("", ", fused steps"):
        about = f"{question}, with 2, 4 workers{steps}"
        for workers in ("2 workers", "4 workers"):
            ours = Cell(question, f"{workers}{steps}")
            yield Goal("workers", ours, theirs, 1 / 1.1, about, wording)


def _sessions() -> Iterator[Goal]:
    trip, memory = "round trip, median", "memory of the server, more by"
    ours, theirs = Cell(trip, "idle sessions"), Cell(trip, "no sessions")
    longer = "at most 10 % longer than without"
    yield Goal("sessions", ours, theirs, 1 / 1.1, trip, longer)
    ours = Cell(memory, "idle sessions")
    yield Goal("sessions", ours, 100e6, 1.0, memory, "under 100 MB")


def _startup() -> Iterator[Goal]:
    for question, most in {"import, behind torch": 0.15, "server ready": 3.0}.items():
        ours = Cell(question, "Stratagem")
        yield Goal("startup", ours, most, 1.0, question, f"at most {most:g} s")


def _scheduling() -> Iterator[Goal]:
    for closure in ("nothing", "update"):
        for what, least in {"time for one of many": 4.0, "round trip": 2.0}.items():
            about = f"{closure}, {what} with 1, 2, 4 workers"
            for workers in ("1 worker", "2 workers", "4 workers"):
                question = f"{closure}, {workers}, {what}"
                yield _beside("scheduling", question, "TensorFlow", least, about)


def _durability() -> Iterator[Goal]:
    for question, theirs, least in (
        ("small update, 4 workers", "none", 0.7),
        ("update of 10 MB", "disk", 0.8),
        ("step of MovieLens", "none", 0.9),
    ):
        cells = Cell(question, "log"), Cell(question, theirs)
        wording = f"with a log {least:g} times {theirs}"
        yield Goal("durability", *cells, least, question, wording)


def _capacity() -> Iterator[Goal]:
    about = "steps of a full server, of those that its processor's time says"
    for load in capacity.LOADS.values():
        full, cost = (
            Cell(f"{what}, {capacity.WORKERS} workers", load)
            for what in (capacity.FULL, capacity.COST)
        )
        yield Goal("capacity", full, cost, 0.8, about, "at least 0.8")


def _beside(measurement: str, question: str, peer: str, least: float, about: str = "") -> Goal:
    wording = f"{least:g} times {peer}"
    ours, theirs = Cell(question, "Stratagem"), Cell(question, peer)
    return Goal(measurement, ours, theirs, least, about or question, wording)


def _marked(goal: Goal) -> Goal:
    return replace(goal, kept=goal.name in REACHED.get(goal.measurement, ()))


GOALS: Sequence[Goal] = [
    _marked(goal)
    for goals in (
        _clicks(),
        _transfers(),
        _transfers_over_tcp(),
        _small_updates(),
        _resnet(),
        _lookups(),
        _movielens(),
        _workers(),
        _sessions(),
        _startup(),
        _scheduling(),
        _durability(),
        _capacity(),
    )
    for goal in goals
]
