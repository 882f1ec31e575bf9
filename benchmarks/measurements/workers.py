"""What an example of MovieLens costs in processor time, with 1, 2 and 4 workers."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.measurements.movielens import ratings_file


def workers(counts: Sequence[int] = (1, 2, 4)) -> Contest:
    """All processes of the cluster count, but not what they do to start."""
    file = ratings_file()
    contestants = [
        Contestant(counted(count), "stratagem.workers", [file, str(count)])
        for count in counts
    ]
    names = {each.name for each in contestants}
    # As long for an example in microseconds as for a million of them in seconds.
    question = Question("processors, a million examples", "cost", names, 1.0, "us")
    return Contest("workers", contestants, [question])


def counted(count: int) -> str:
    """So many workers, in words."""
    return f"{count} worker" if count == 1 else f"{count} workers"
