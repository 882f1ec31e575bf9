"""`python -m benchmarks.step_profile`: where the time of a training step goes.

A step is that of the MovieLens example at batch 1024, with one worker, this process,
and one server. The worker is profiled by the clock: its wait for the server's answer is
time of sockets. Of the server only its processor time is known.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from benchmarks.harness.table import Table
from benchmarks.measurements.movielens import ratings_file
from benchmarks.peers import timing
from benchmarks.peers.processor_time import processor_seconds
from benchmarks.peers.stratagem.training import alone, recommending

STEPS = 300
_SHOWN = 12

Function: TypeAlias = tuple[str, int, str]

# The first whose mark is in a function's file or name has it.
_PARTS: Mapping[str, str] = {
    "/torch/": "torch",
    "torch._C": "torch",
    "torch.": "torch",
    "_thread.lock": "locks",
    "select": "locks",
    "/grpc/": "gRPC",
    "grpc._cython": "gRPC",
    "_socket.socket": "sockets",
    "/threading.py": "locks",
    "/stratagem_proto/": "encoding and decoding",
    "google.": "encoding and decoding",
    "/stratagem/_servers/": "requests",
    "/stratagem/_parameter_server/": "the strategy",
    "/stratagem/_optimizers/": "the strategy",
    "/stratagem/": "replicas and contexts",
    "/examples/": "the model",
    "/benchmarks/": "the model",
}


@dataclass(frozen=True)
class Profile:
    """What some steps took.

    Attributes:
        steps: How many.
        seconds: On the clock, without a profiler.
        worker: Seconds of processors of the worker, without a profiler.
        server: Seconds of processors of the server, likewise.
        stats: What the profiler found.
    """

    steps: int
    seconds: float
    worker: float
    server: float
    stats: pstats.Stats


def profiled(steps: int) -> Profile:
    """Takes as many steps without a profiler, and as many with it."""
    with alone(ps=1) as strategy:
        take = timing.repeated(recommending(strategy, ratings_file()), steps)
        take()
        before = _clocks()
        take()
        seconds, worker, server = np.subtract(_clocks(), before)
        profiler = cProfile.Profile()
        profiler.runcall(take)
    return Profile(steps, seconds, worker, server, pstats.Stats(profiler))


def _clocks() -> tuple[float, float, float]:
    """The time, and that of processors for the worker and for the server."""
    everything, worker = processor_seconds(os.getpid()), time.process_time()
    return time.perf_counter(), worker, everything - worker


def clocks(profile: Profile) -> Table:
    """Times without a profiler."""
    times = {
        "the clock": profile.seconds,
        "processors, worker": profile.worker,
        "processors, server": profile.server,
    }
    rows = [(name, f"{took / profile.steps * 1e6:.0f}") for name, took in times.items()]
    return Table(["time of", "us a step"], rows)


def parts(profile: Profile) -> Table:
    """Time of the worker's thread, by what functions are part of."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for function, (_, _, own, *_) in _functions(profile).items():
        seconds[_part(function)] += own
    largest = sorted(seconds.items(), key=itemgetter(1), reverse=True)
    rows = [_row(part, own, profile) for part, own in largest]
    return Table(["part", "us a step", "of all"], rows)


def most(profile: Profile) -> Table:
    """The functions that take most themselves."""
    own = [(took[2], function) for function, took in _functions(profile).items()]
    rows = [
        _row(_named(function), seconds, profile)
        for seconds, function in sorted(own, reverse=True)[:_SHOWN]
    ]
    return Table(["function", "us a step", "of all"], rows)


def _functions(profile: Profile) -> Mapping[Function, tuple[int, int, float, float]]:
    found: Mapping[Function, tuple[int, int, float, float]]
    found = profile.stats.stats  # type: ignore[attr-defined]
    return found


def _part(function: Function) -> str:
    file, _, name = function
    marks = (part for mark, part in _PARTS.items() if mark in file or mark in name)
    return next(marks, "other")


def _named(function: Function) -> str:
    file, line, name = function
    place = "/".join(file.split("/")[-2:])
    return f"`{name}`" if file == "~" else f"`{name}` ({place}:{line})"


def _row(name: str, seconds: float, profile: Profile) -> Sequence[str]:
    total: float = profile.stats.total_tt  # type: ignore[attr-defined]
    each = seconds / profile.steps * 1e6
    return name, f"{each:.0f}", f"{seconds / total:.0%}"


def main(steps: int = STEPS) -> None:
    """Prints where the time goes."""
    profile = profiled(steps)
    print(*(table(profile).markdown() for table in (clocks, parts, most)), sep="\n")


if __name__ == "__main__":
    main()
