"""What it costs to lose less: steps of servers without, with snapshots, a log, and a backup.

The limit of a log is what the disk takes for the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.measurements.movielens import ratings_file
from benchmarks.peers.stratagem.clusters import DURABILITY, REPLICAS

_SMALL, _LARGE = 100, 10_000_000
# The settings of servers by the name of the contestant.
_SERVERS = {
    "none": {},
    "snapshot": {DURABILITY: "snapshot"},
    "log": {DURABILITY: "log"},
    "backup": {REPLICAS: "2"},
    "backup and log": {REPLICAS: "2", DURABILITY: "log"},
}
_DISK = Contestant("disk", "limits.disk")


def durability(seconds: float = 0.4) -> Sequence[Contest]:
    """A contest for each kind of program."""
    file = ratings_file()
    return [
        _updates(seconds),
        _contest("stratagem.workers", [file, "4", "small"], {"small update, 4 workers": "time"}, 1),
        _contest("stratagem.lookups", [], {"rows, push + Adagrad": "push uniform"}, seconds),
        _contest("stratagem.coordinator", ["1"], {"scheduled update": "rate update"}, seconds),
        _contest("stratagem.movielens", [file, "{}"], {"step of MovieLens": "step"}, seconds),
    ]


def _updates(seconds: float) -> Contest:
    questions = {"small update": f"push {_SMALL}", "update of 10 MB": f"push {_LARGE}"}
    contest = _contest("stratagem.transfer", [], questions, seconds)
    names = [*_SERVERS, _DISK.name]
    return Contest(
        contest.name,
        (*contest.contestants, _DISK),
        [Question(each.name, each.asked, names, seconds) for each in contest.questions],
    )


def _contest(
    module: str, arguments: Sequence[str], questions: dict[str, str], seconds: float
) -> Contest:
    contestants = [
        Contestant(name, module, arguments, settings=settings)
        for name, settings in _SERVERS.items()
    ]
    asked = [Question(name, ask, [*_SERVERS], seconds) for name, ask in questions.items()]
    return Contest("durability", contestants, asked)
