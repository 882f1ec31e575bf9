"""The processes that run a script, one per worker."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stratagem_deploy.process import Process, share_of_cores
from stratagem_deploy.screen import Copied, Screen, write_all
from stratagem_deploy.transcript import Transcript


@dataclass(frozen=True)
class ScriptWorkers:
    """What the workers of one run have in common.

    Attributes:
        command: The script and its arguments.
        cluster: The addresses of the tasks by job, as in TF_CONFIG.
        token_file: File with the cluster's secret.
    """

    command: Sequence[str]
    cluster: Mapping[str, Sequence[str]]
    token_file: Path

    def start(
        self, index: int, screen: Screen, on_end: Callable[[Process], None]
    ) -> Process:
        """Starts a worker.

        Args:
            index: Its index; worker 0 is the chief.
            screen: Where its output goes.
            on_end: Called from another thread, once, when it has ended.
        """
        output, errors = _chief(screen) if index == 0 else _labelled(index, screen)
        return Process(
            f"worker:{index}",
            [sys.executable, *self.command],
            environment=self.environment(index),
            output=output,
            errors=errors,
            on_end=on_end,
        )

    def environment(self, index: int) -> dict[str, str]:
        """What a worker finds in its environment, besides what we found in ours."""
        task = {"type": "worker", "index": index}
        return {
            "TF_CONFIG": json.dumps({"cluster": self.cluster, "task": task}),
            "STRATAGEM_TOKEN_FILE": str(self.token_file),
            # Through a pipe, Python would keep its words back until it ends.
            "PYTHONUNBUFFERED": "1",
            **share_of_cores(len(self.cluster["worker"])),
        }


def _chief(screen: Screen) -> tuple[Transcript, Transcript]:
    """The chief is the main program: what it writes is the run's own output."""
    errors = Copied(2, screen.copy)
    # One pipe for both keeps their order where a reader could see it.
    if os.path.sameopenfile(1, 2):
        return errors, errors
    return Copied(1, partial(write_all, 1)), errors


def _labelled(index: int, screen: Screen) -> tuple[Transcript, Transcript]:
    both = Transcript(screen.labelled(f"worker:{index}", index))
    return both, both
