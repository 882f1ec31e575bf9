"""What a run tells people in the end."""

from __future__ import annotations

from collections import Counter

import numpy as np

from benchmarks.chaos.run import Run
from benchmarks.harness.table import Table


def table(run: Run) -> Table:
    """Return what went wrong how often, and what became of the training."""
    counted = Counter(fault.kind for fault in run.happened)
    rows = [[kind, str(number)] for kind, number in sorted(counted.items())]
    rows.append(["faults in all", str(len(run.happened))])
    steps = np.asarray(run.account.steps())
    rows.append(["steps", str(len(steps))])
    if len(steps) > 1:
        rows.append(["longest time without a step, s", f"{np.diff(np.sort(steps)).max():.1f}"])
    if run.outcome is not None:
        rows.append(["passes over the ratings", str(run.outcome.passes)])
        rows.append(["RMSE", f"{run.outcome.error:.4f}"])
        rows.append(["RMSE of one process without faults", f"{run.alone:.4f}"])
    return Table(["", ""], rows)
