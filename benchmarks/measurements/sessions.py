"""What idle sessions cost a server, and those who use it."""

from __future__ import annotations

from benchmarks.harness.contest import Contest, Contestant, Question

_SMALL = 100
_ALONE, _AMONG = "no sessions", "idle sessions"


def sessions(count: int = 1000, seconds: float = 0.4) -> Contest:
    """Memory for so many sessions, and a small update beside them."""
    contestants = (
        Contestant(_ALONE, "stratagem.sessions", ["0"]),
        Contestant(_AMONG, "stratagem.sessions", [str(count)]),
    )
    asked = f"push {_SMALL}"
    questions = (
        Question("round trip, median", asked, {_ALONE, _AMONG}, seconds),
        Question("memory of the server, more by", "memory", {_AMONG}, unit="MB"),
    )
    return Contest("sessions", contestants, questions)
