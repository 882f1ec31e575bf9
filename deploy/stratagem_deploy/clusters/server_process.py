"""A server in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stratagem_deploy.clusters.servers import RestartableServer
from stratagem_deploy.processes.child import Starter
from stratagem_deploy.processes.forking.fork_server import start_forked
from stratagem_deploy.processes.process import Process, describe_exit, import_path
from stratagem_deploy.processes.transcript import Transcript
from stratagem_proto.errors import DeadlineExceededError, UnavailableError

_POLL_SECONDS = 0.02

# What sets `rejoin_seconds` of parameter servers, unless they get an option that does.
_REJOIN = "STRATAGEM_REJOIN_SECONDS"

# Others wait for the processes to start again that this machine can start meanwhile.
_REJOIN_SECONDS = 300.0

_PROGRAMS = {"ps": "stratagem_psserver.__main__", "worker": "stratagem_worker.__main__"}


def patience_for_restarts() -> Mapping[str, str]:
    """Return an environment in which parameter servers expect lost workers to be started again.

    Workers that step together then wait for them. What our environment says counts.
    """
    return {_REJOIN: os.environ.get(_REJOIN, str(_REJOIN_SECONDS))}


@dataclass(frozen=True)
class ServerCommand:
    """The command line of a server's process.

    Attributes:
        job: "ps" or "worker".
        task: Index within the job.
        address: Where it serves.
        token_file: File with the cluster's secret.
        options: More options of `stratagem ps` or `stratagem worker`.
        environment: What it finds in its environment, besides what we found in ours.
        replica: Its number among the replicas of the task; None if it is the only one.
    """

    job: str
    task: int
    address: str
    token_file: Path
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    replica: int | None = None

    @property
    def name(self) -> str:
        task = f"{self.job}:{self.task}"
        return task if self.replica is None else f"{task} replica {self.replica}"

    def line(self, ready_file: Path) -> list[str]:
        return [
            *(sys.executable, "-m", _PROGRAMS[self.job]),
            *("--bind", self.address),
            *("--task", str(self.task)),
            *("--token-file", str(self.token_file)),
            *("--ready-file", str(ready_file)),
            *self.options,
        ]


class ServerProcess(RestartableServer):
    """A server in a process of its own."""

    def __init__(
        self,
        command: ServerCommand,
        *,
        show: Callable[[str], None] | None = None,
        on_end: Callable[[Process], None] | None = None,
        start: Starter = start_forked,
    ) -> None:
        """Start nothing yet.

        Args:
            command: What to start.
            show: Called with every line of its log.
            on_end: Called from another thread whenever its process has ended.
            start: Starts its process.
        """
        self._command = command
        self._ready_file = command.token_file.with_name(f"{command.name}.ready".replace(" ", "-"))
        self._show = show
        self._on_end = on_end
        self._start = start
        self.process: Process | None = None

    @property
    def name(self) -> str:
        """The name of its process."""
        return self._command.name

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.exit_code is None

    def start(self) -> None:
        if self.runs:
            return
        self._ready_file.unlink(missing_ok=True)
        self.process = Process(
            self._command.name,
            self._command.line(self._ready_file),
            environment={**import_path(), **self._command.environment},
            output=Transcript(self._show),
            on_end=self._on_end,
            start=self._start,
        )

    def await_serving(self, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while not self._ready_file.exists():
            self._check_alive()
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"{self._where()} does not serve after {timeout:g} s; give it more "
                    f"by start_timeout\n{self._tail()}"
                )
            time.sleep(_POLL_SECONDS)
        facts = json.loads(self._ready_file.read_text(encoding="utf-8"))
        return str(facts["health_address"])

    def begin_stop(self) -> None:
        if self.process:
            self.process.send(signal.SIGTERM)

    def stop(self, grace: float) -> None:
        if self.process:
            self.process.end(grace)

    def kill(self) -> None:
        if self.process:
            self.process.send(signal.SIGKILL)
            self.process.wait()

    def _check_alive(self) -> None:
        code = self.process.exit_code if self.process else 0
        if code is not None:
            raise UnavailableError(
                f"{self._where()} ended with {describe_exit(code)} before it served; "
                f"the end of its log:\n{self._tail()}"
            )

    def _where(self) -> str:
        return f"{self._command.name} at {self._command.address}"

    def _tail(self) -> str:
        return self.process.tail() if self.process else ""
