"""What a worker reports of its training, and what must be true of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from rich.table import Table

import stratagem

from .log import ROWS
from .training import DIM, Test

TABLE_BYTES = sum(ROWS) * DIM * 4
"""What the tables would take with all their rows."""

MOST_GROWTH = 0.05
"""How much memory a worker may take, as a share of that."""


@dataclass(frozen=True)
class Training:
    """What a worker has seen of its training.

    Attributes:
        batch: Examples of a step.
        losses: Of each step.
        seconds: What all of it took.
        phases: What the phases of the steps took, in seconds.
        traffic: What crossed the wire.
        growth: Bytes by which the process grew at most.
    """

    batch: int
    losses: Sequence[float]
    seconds: float
    phases: Mapping[str, float]
    traffic: stratagem.Traffic
    growth: int

    def require_success(self) -> None:
        """Check that the loss fell and memory did not grow too much.

        Raises:
            SystemExit: That is not so.
        """
        half = len(self.losses) // 2
        if mean(self.losses[half:]) >= mean(self.losses[:half]):
            raise SystemExit("the loss did not fall")
        if self.growth > MOST_GROWTH * TABLE_BYTES:
            raise SystemExit(
                f"the process grew by {_megabytes(self.growth)}, more than "
                f"{MOST_GROWTH:.0%} of the {_megabytes(TABLE_BYTES)} of the tables"
            )


def memory(figure: str) -> int:
    """Bytes of this process: VmRSS for those of now, VmHWM for the most so far."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{figure}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def report(training: Training, test: Test) -> Table:
    """What a worker's training and its test came to, for people."""
    table = Table("chief", "")
    grown = f"{_megabytes(training.growth)}, {training.growth / TABLE_BYTES:.1%} of it"
    table.add_row("tables", f"{sum(ROWS):,} rows, {_megabytes(TABLE_BYTES)}")
    table.add_row("memory grew by", grown)
    for name, figure in {**_speed(training), **_quality(training, test)}.items():
        table.add_row(name, figure)
    return table


def _speed(training: Training) -> dict[str, str]:
    steps, phases = len(training.losses), training.phases
    computing, pushing = phases["compute"], phases["push"]
    # Before the function of the step, `run` brings what the last push has not.
    pulling = phases["step"] - computing - pushing
    return {
        "examples/s": f"{training.batch * steps / training.seconds:,.0f}",
        "sent": f"{training.traffic.sent_bytes / steps / 1e6:.2f} MB a step",
        "received": f"{training.traffic.received_bytes / steps / 1e6:.2f} MB a step",
        "step": f"{phases['step'] / steps * 1000:.0f} ms",
        "- pulling values": f"{pulling / phases['step']:.0%}",
        "- forward and backward": f"{computing / phases['step']:.0%}",
        "- pushing gradients": f"{pushing / phases['step']:.0%}",
    }


def _quality(training: Training, test: Test) -> dict[str, str]:
    tenth = max(1, len(training.losses) // 10)
    first, last = mean(training.losses[:tenth]), mean(training.losses[-tenth:])
    return {
        "log loss, training": f"{first:.4f} in the first tenth, {last:.4f} in the last",
        "log loss, test": f"{test.loss:.4f}; {test.least_loss:.4f} by the true chances",
        "AUC, test": f"{test.auc:.4f}; {test.most_auc:.4f} by the true chances",
    }


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
