"""Starting servers and workers on hosts, each of which can be cut off."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.hosts.host import Host, Hosts
from stratagem_deploy.clusters.servers import ServerCommand, ServerProcess
from stratagem_deploy.processes.process import share_of_cores, start_program

WORKERS = 2

# Processes load PyTorch, on a machine that may be busy.
START_SECONDS = 300.0
# The longest time that a process takes to end in order, before it is killed.
DRAIN_SECONDS = 120.0


@dataclass(frozen=True)
class _CommandThere(ServerCommand):
    """The command of a server on a host.

    Attributes:
        door: What comes before it.
    """

    door: tuple[str, ...] = ()

    def line(self, ready_file: Path) -> list[str]:
        return [*self.door, *super().line(ready_file)]


class Launcher:
    """Makes the processes of one cluster, which share a secret.

    Args:
        folder: For what they write.
        hosts: Where they are to run.
        on_line: Called with each line of their logs.

    Attributes:
        folder: The folder.
        hosts: Where they run, in the end by names such as "ps-0-1".
        token: The secret.
    """

    def __init__(self, folder: Path, hosts: Hosts, on_line: Callable[[str], None]) -> None:
        self.folder, self.hosts, self._on_line = folder, hosts, on_line
        self.token = secrets.token_urlsafe(32)
        self._token_file = folder / "token"
        self._token_file.touch(mode=0o600)
        self._token_file.write_text(self.token)

    def host(self, name: str) -> Host:
        """Return one more host."""
        return self.hosts.add(name)

    def process(
        self,
        job: str,
        index: int,
        host: Host,
        options: Sequence[str] = (),
        number: int | None = None,
    ) -> ServerProcess:
        """Return a server or worker, not started.

        Args:
            job: Its job.
            index: Its task.
            host: Where it is to run.
            options: What it is started with besides.
            number: Which replica of the task it is; None if it is the only one.
        """
        environment = {**self.hosts.environment, **share_of_cores(WORKERS)}
        given = ("--insecure", *options)
        command = _CommandThere(
            job, index, host.bind, self._token_file, given, environment, number, host.door
        )
        return ServerProcess(command, show=self._on_line, start=start_program)
