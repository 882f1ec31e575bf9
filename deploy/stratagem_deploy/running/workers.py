"""The processes that run a script: one per worker, or those that coordinate worker servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stratagem_deploy.output.display import Display
from stratagem_deploy.processes.process import (
    Process,
    equal_order_of_sets,
    import_path,
    share_of_cores,
)
from stratagem_deploy.running.credentials import RunCredentials

# By its name, because it would load PyTorch, for which the command need not wait.
_STANDING_BY = "stratagem_deploy.running.standing_by"


@dataclass(frozen=True)
class ScriptWorkers:
    """What the workers of one run have in common.

    Attributes:
        command: The script and its arguments.
        cluster: The addresses of the tasks by job, as in TF_CONFIG.
        credentials: What they show the servers.
        full_tracebacks: Whether our own frames are printed, too.
        coordinators: How many processes run the script, of which one coordinates and the others
            stand by; 0 if each worker runs it.
    """

    command: Sequence[str]
    cluster: Mapping[str, Sequence[str]]
    credentials: RunCredentials
    full_tracebacks: bool = False
    coordinators: int = 0

    @property
    def count(self) -> int:
        """How many processes run the script."""
        return self.coordinators or len(self.cluster["worker"])

    def start(self, index: int, display: Display, on_end: Callable[[Process], None]) -> Process:
        """Start a process that runs the script.

        Args:
            index: Its index; worker 0 is the chief, and so are all that may coordinate.
            display: Where its output goes.
            on_end: Called from another thread, once, when it has ended.
        """
        name = f"coordinator:{index}" if self.coordinators else f"worker:{index}"
        output, errors = display.of_worker(name, 0 if self.coordinators else index)
        waits = ("-m", _STANDING_BY) if self.coordinators > 1 else ()
        return Process(
            name,
            [sys.executable, *waits, *self.command],
            environment={**import_path(), **self.environment(index)},
            output=output,
            errors=errors,
            on_end=on_end,
        )

    def environment(self, index: int) -> dict[str, str]:
        """Return what the environment of a process has that ours has not."""
        task: dict[str, str | int] = {"type": "worker", "index": index}
        certificates = self.credentials.certificates(
            "worker" if index else "chief", "worker", index
        )
        if self.coordinators:
            task = {"type": "chief", "index": 0}
            certificates = self.credentials.certificates("chief", "chief")
        return {
            "TF_CONFIG": json.dumps({"cluster": self.cluster, "task": task}),
            "STRATAGEM_TOKEN_FILE": str(self.credentials.token_file),
            **certificates,
            # Read when `stratagem` is imported, and by nobody before.
            "STRATAGEM_FOLD_TRACEBACKS": "" if self.full_tracebacks else "1",
            # Through a pipe, Python would keep its words back until it ends.
            "PYTHONUNBUFFERED": "1",
            **share_of_cores(len(self.cluster["worker"])),
            **equal_order_of_sets(),
        }
