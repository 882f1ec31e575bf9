"""How long it takes until something can be used."""

from __future__ import annotations

from benchmarks.harness.contest import Contest, Contestant, Question

_OURS = Contestant("Stratagem", "stratagem.startup")


def startup() -> Contest:
    """The library, once torch is there; and a process of a server."""
    questions = (
        Question("import, behind torch", "import", {_OURS.name}, unit="s"),
        Question("server ready", "server", {_OURS.name}, unit="s"),
    )
    return Contest("startup", [_OURS], questions)
