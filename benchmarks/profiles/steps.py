"""Where the time of a training step goes.

A step is that of the MovieLens example at batch 1024, with one worker, this process, and one
server. The worker is profiled by the clock: its wait for the server's answer is time of sockets. Of
the server only its processor time is known.
"""

from __future__ import annotations

import cProfile
import os
import pstats
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

from benchmarks.harness.table import Table
from benchmarks.measurements.movielens import ratings_file
from benchmarks.peers import timing
from benchmarks.peers.stratagem.training import alone, recommending
from benchmarks.profiles.clocks import Taken, taken

_SHOWN = 12

Function: TypeAlias = tuple[str, int, str]

# The first that a function's file begins with has it; the file as `_place` says it.
_PARTS_BY_FILE: Mapping[str, str] = {
    "torch/": "torch",
    "grpc/": "gRPC",
    "google/": "encoding and decoding",
    "threading.py": "locks",
    "proto/": "encoding and decoding",
    "rpc/": "requests",
    "client/stratagem/_ps_client/": "requests",
    "client/stratagem/_parameter_server/": "the strategy",
    "client/stratagem/_gradients.py": "the strategy",
    "client/stratagem/_hosting/optimizer.py": "the strategy",
    "client/stratagem/_hosting/trained_tensors.py": "the strategy",
    "client/stratagem/_hosting/wrapped_optimizer.py": "the strategy",
    "client/stratagem/": "replicas and contexts",
    "examples/": "the model",
    "benchmarks/": "the model",
}
# The first that is in the name of a function without a file has it.
_PARTS_BY_NAME: Mapping[str, str] = {
    "torch.": "torch",
    "grpc._cython": "gRPC",
    "google.": "encoding and decoding",
    "_socket.socket": "sockets",
    "_thread.": "locks",
    "select": "locks",
}
_NO_FILE = "~"
_ROOT, _PACKAGES = f"{Path(__file__).resolve().parents[2]}/", "site-packages/"


@dataclass(frozen=True)
class Profile:
    """What some steps took.

    Attributes:
        steps: How many.
        taken: Without a profiler.
        stats: What the profiler found.
    """

    steps: int
    taken: Taken
    stats: pstats.Stats


def page(steps: int) -> str:
    """Tables of what so many steps take."""
    profile = profiled(steps)
    tables = (table(profile) for table in (clocks, parts, most))
    return "\n".join(each.markdown() for each in tables)


def profiled(steps: int) -> Profile:
    """Takes as many steps without a profiler, and as many with it."""
    with alone(ps=1) as strategy:
        take = timing.repeated(recommending(strategy, ratings_file()), steps)
        unprofiled = taken(take)
        profiler = cProfile.Profile()
        profiler.runcall(take)
    return Profile(steps, unprofiled, pstats.Stats(profiler))


def clocks(profile: Profile) -> Table:
    """Times without a profiler."""
    times = {
        "the clock": profile.taken.clock,
        "processors, worker": profile.taken.client,
        "processors, server": profile.taken.server,
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
    if file == _NO_FILE:
        found = (part for mark, part in _PARTS_BY_NAME.items() if mark in name)
    else:
        place = _place(file)
        found = (part for start, part in _PARTS_BY_FILE.items() if place.startswith(start))
    return next(found, "other")


def _place(file: str) -> str:
    """Where a file is in the repository, in what is installed, or in the library."""
    if _PACKAGES in file:
        return file.rpartition(_PACKAGES)[2]
    absolute = os.path.realpath(file)
    if absolute.startswith(_ROOT):
        return absolute.removeprefix(_ROOT)
    return os.path.basename(file)


def _named(function: Function) -> str:
    file, line, name = function
    return f"`{name}`" if file == _NO_FILE else f"`{name}` ({_place(file)}:{line})"


def _row(name: str, seconds: float, profile: Profile) -> Sequence[str]:
    total: float = profile.stats.total_tt  # type: ignore[attr-defined]
    each = seconds / profile.steps * 1e6
    return name, f"{each:.0f}", f"{seconds / total:.0%}"
