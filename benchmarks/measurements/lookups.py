"""4096 rows of 16 floats, out of a million: looked up, and stepped by Adagrad."""

from __future__ import annotations

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.harness.environments import Foreign

_CONTESTANTS = (
    Contestant("Stratagem", "stratagem.lookups"),
    Contestant("TensorFlow", "tensorflow.lookups", peer=Foreign.TENSORFLOW),
    Contestant("gRPC unary", "limits.lookups"),
    Contestant("bare server", "limits.bare_lookups"),
)
_DRAWN = {"uniform": "uniform", "zipf": "Zipf(1.05)"}
_DIRECTIONS = {"pull": "pull", "push": "push + Adagrad"}


def lookups(seconds: float = 0.2) -> Contest:
    """Rows that are drawn evenly, and rows of which some are drawn often."""
    names = {each.name for each in _CONTESTANTS}
    questions = [
        Question(f"{direction}, {drawn}", f"{push} {kind}", names, seconds)
        for push, direction in _DIRECTIONS.items()
        for kind, drawn in _DRAWN.items()
    ]
    return Contest("lookups", _CONTESTANTS, questions)
