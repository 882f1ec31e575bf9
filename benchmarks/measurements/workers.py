"""What an example of MovieLens costs in processor time, with 1, 2 and 4 workers."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.measurements.movielens import ratings_file


def workers(counts: Sequence[int] = (1, 2, 4)) -> Contest:
    """All processes of the cluster count, but not what they do to start.

    Loops that have no server say what the machine takes for doing several things.
    """
    file = ratings_file()
    contestants = [
        *[_training(counted(count), file, count, "default") for count in counts],
        # Those of a lone worker are fused by default.
        *[
            _training(f"{counted(count)}, fused steps", file, count, "fused")
            for count in counts
            if count > 1
        ],
        *[
            Contestant(counted(count, "loop"), "limits.loops", [file, str(count)])
            for count in counts
        ],
    ]
    names = {each.name for each in contestants}
    # As long for an example in microseconds as for a million of them in seconds.
    question = Question("processors, a million examples", "cost", names, 1.0, "us")
    return Contest("workers", contestants, [question])


def _training(name: str, file: str, count: int, steps: str) -> Contestant:
    return Contestant(name, "stratagem.workers", [file, str(count), steps])


def counted(count: int, one: str = "worker") -> str:
    """So many of them, in words."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
