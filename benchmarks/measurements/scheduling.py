"""Closures on worker servers, beside those of other coordinators.

Worker servers and one parameter server are processes of their own. Each coordinator schedules
closures that do nothing, and closures that add 10 numbers to a variable.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.harness.environments import Foreign
from benchmarks.measurements.workers import counted

_CLOSURES = ("nothing", "update")
_KINDS = {"rate": "time for one of many", "trip": "round trip", "cost": "processors"}


def scheduling(workers: Sequence[int] = (1, 2, 4), seconds: float = 0.3) -> Sequence[Contest]:
    """A contest for each number of workers."""
    return [_contest(count, seconds) for count in workers]


def _contest(workers: int, seconds: float) -> Contest:
    arguments = [str(workers)]
    contestants = (
        Contestant("Stratagem", "stratagem.coordinator", arguments),
        Contestant("TensorFlow", "tensorflow.coordinator", arguments, Foreign.TENSORFLOW),
    )
    names = {each.name for each in contestants}
    questions = [
        Question(f"{closure}, {counted(workers)}, {what}", f"{kind} {closure}", names, seconds)
        for closure in _CLOSURES
        for kind, what in _KINDS.items()
    ]
    return Contest("scheduling", contestants, questions)
