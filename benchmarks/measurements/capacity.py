"""How many steps of workers a server carries, by what one costs it of a processor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.measurements.clicks import FILE, written_log

LOADS = {"small": "small update", "rows": "4,096 rows", "clicks": "click model, batch of 1,024"}
WORKERS = 4
COST, FULL = "processor of the server", "share of a full server"


def capacity(
    loads: Sequence[str] = tuple(LOADS), file: Path = FILE, seconds: float = 1.0
) -> Contest:
    """Each contestant is what its workers ask for: there is one server, and nobody to beat.

    Of what a server uses of a processor follows how many steps fill a core. What a full server is
    given of one says whether that is so.
    """
    written = written_log(file) if "clicks" in loads else ""
    contestants = [Contestant(LOADS[load], "stratagem.capacity", [load, written]) for load in loads]
    names = [each.name for each in contestants]
    questions = [
        Question(f"{COST}, 1 worker", "processor 1", names, seconds, "us"),
        Question(f"{COST}, {WORKERS} workers", f"processor {WORKERS}", names, seconds, "us"),
        # Longer, since at its end workers wait for the slowest of them, and the server for nobody.
        Question(f"{FULL}, {WORKERS} workers", f"full {WORKERS}", names, 3 * seconds, "us"),
    ]
    return Contest("capacity", contestants, questions)
