"""A running Compose project, as tests look at it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

COMPOSE = Path(sys.executable).with_name("docker-compose")

NETWORK = "stratagem_cluster"


def container(service: str) -> str:
    """The name of the container of a service."""
    return f"stratagem-{service}-1"


@dataclass(frozen=True)
class Project:
    """Containers by the names of their services."""

    files: Sequence[Path]
    environment: Mapping[str, str]

    def compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of Compose to its end."""
        return self._run(str(COMPOSE), *self._chosen(), *arguments)

    def _chosen(self) -> list[str]:
        return [word for file in self.files for word in ("--file", str(file))]

    def up(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Starts it of images that are there."""
        return self.compose("up", "--no-build", "--pull", "never", *arguments)

    def down(self) -> None:
        """Removes the containers of all profiles, and what they have written."""
        self.compose("--profile=*", "down", "--volumes")

    def inside(self, service: str, *command: str) -> str:
        """What a command prints in a container; nothing if it fails."""
        return self.compose("exec", "-T", service, *command).stdout

    def inspect(self, service: str, field: str) -> str:
        """A field of the engine's description of a container."""
        return self._docker("inspect", "--format", field, service)

    def crash(self, service: str) -> None:
        """Kills what runs in a container.

        After `docker kill` the engine would not start it again.
        """
        self.inside(service, "sh", "-c", "kill -KILL -1")

    def kill(self, service: str) -> None:
        """Kills a container, as who is at the machine does: only `start` brings it back."""
        self._docker("kill", service)

    def start(self, service: str) -> None:
        """Starts a container again that was killed."""
        self._docker("start", service)

    @property
    def bridge(self) -> str:
        """The device of this machine that connects the containers."""
        command = [self.environment["DOCKER"], "network", "inspect", "--format", "{{.Id}}", NETWORK]
        return f"br-{self._run(*command).stdout[:12]}"

    def cut(self, service: str) -> None:
        """Takes a container from the network; what it has mounted stays."""
        self._docker("network", "disconnect", NETWORK, service)

    def heal(self, service: str) -> None:
        """Gives a container that was cut off the network and its name back."""
        self._docker("network", "connect", "--alias", service, NETWORK, service)

    def _docker(self, *command: str) -> str:
        *words, service = command
        ended = self._run(self.environment["DOCKER"], *words, container(service))
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def restarts(self, service: str) -> int:
        """How often the engine has started a container again."""
        return int(self.inspect(service, "{{.RestartCount}}"))

    def exit_code(self, service: str) -> int:
        """Waits until a container has ended for good."""
        return int(self._docker("wait", service))

    def logs(self, service: str) -> str:
        """What a service has written so far."""
        return self.compose("logs", "--no-log-prefix", service).stdout

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
