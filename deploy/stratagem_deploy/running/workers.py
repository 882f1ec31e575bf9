"""The processes that run a script, one per worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratagem_deploy.output.display import Display
from stratagem_deploy.processes.process import Process, share_of_cores


@dataclass(frozen=True)
class ScriptWorkers:
    """What the workers of one run have in common.

    Attributes:
        command: The script and its arguments.
        cluster: The addresses of the tasks by job, as in TF_CONFIG.
        token_file: File with the cluster's secret.
        full_tracebacks: Whether our own frames are printed, too.
    """

    command: Sequence[str]
    cluster: Mapping[str, Sequence[str]]
    token_file: Path
    full_tracebacks: bool = False

    def start(self, index: int, display: Display, on_end: Callable[[Process], None]) -> Process:
        """Start a worker.

        Args:
            index: Its index; worker 0 is the chief.
            display: Where its output goes.
            on_end: Called from another thread, once, when it has ended.
        """
        name = f"worker:{index}"
        output, errors = display.of_worker(name, index)
        return Process(
            name,
            [sys.executable, *self.command],
            environment=self.environment(index),
            output=output,
            errors=errors,
            on_end=on_end,
        )

    def environment(self, index: int) -> dict[str, str]:
        """Return what a worker's environment has that ours has not."""
        task = {"type": "worker", "index": index}
        return {
            "TF_CONFIG": json.dumps({"cluster": self.cluster, "task": task}),
            "STRATAGEM_TOKEN_FILE": str(self.token_file),
            # Read when `stratagem` is imported, and by nobody before.
            "STRATAGEM_FOLD_TRACEBACKS": "" if self.full_tracebacks else "1",
            # Through a pipe, Python would keep its words back until it ends.
            "PYTHONUNBUFFERED": "1",
            **share_of_cores(len(self.cluster["worker"])),
        }
