"""What stands in for a node's container engine: one pod on one host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.namespace import Namespace
from stratagem_deploy.processes.process import import_path
from tests.deploy.manifests.pods import Container, Pod

ROOT = Path(__file__).parents[2]

# What this machine has in place of an image.
SYSTEM = ("bin", "dev", "etc", "lib", "lib64", "sbin", "sys", "usr")
EXAMPLES = "/opt/stratagem/examples"

IMAGE_ENVIRONMENT = {
    "HOME": "/tmp",
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "PATH": f"{Path(sys.prefix, 'bin')}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "PYTHONDONTWRITEBYTECODE": "1",
    **import_path(),
    "PYTHONUNBUFFERED": "1",
}


class Host:
    """A pod with a network, files and processes of its own.

    Its container sees the programs of this machine, this tree in place of an installed Stratagem,
    and its volumes; like there it is no root and can write these only.

    Args:
        pod: What runs.
        folder: For what it needs and writes; nobody else's.
        environment: What Kubernetes adds to the variables of its containers.
    """

    def __init__(
        self, pod: Pod, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.pod, self._environment = pod, environment or {}
        self.namespace = Namespace()
        self._root = folder / "root"
        self._root.mkdir(parents=True)
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def mount(self, volumes: Mapping[str, Path], hosts: Path) -> None:
        """Gives it its files.

        Args:
            volumes: Folders by where it finds them.
            hosts: The names of all hosts, in the form of /etc/hosts.
        """
        self.namespace.enter("hostname", self.pod.hostname)
        for name in SYSTEM:
            self._bind(Path("/", name), f"/{name}")
        (self._root / "proc").mkdir()
        self.namespace.enter("mount", "-t", "proc", "proc", f"{self._root}/proc")
        self.namespace.enter("mount", "--bind", str(hosts), f"{self._root}/etc/hosts")
        for path, folder in volumes.items():
            self._bind(folder, path)
        self._bind(ROOT / "examples", EXAMPLES)
        # Last, since they may be below what has just been mounted.
        for source in {ROOT, Path(sys.prefix), Path(sys.base_prefix)}:
            self._bind(source, str(source))

    def start(self) -> None:
        """Runs its containers: the first ones to their end, and the one that stays."""
        for container in self.pod.first:
            assert self._started(container).wait() == 0, self.log
        self._process = self._started(self.pod.container)

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text()

    def exit_code(self, seconds: float) -> int:
        """Waits until its container has ended."""
        assert self._process is not None
        return self._process.wait(seconds)

    def execute(self, *command: str) -> str:
        """What another command prints that runs where the container does."""
        return self.namespace.enter(*self._inside(self.pod.container), *command)

    def stop(self) -> None:
        """Asks all that runs on it to end, by SIGTERM."""
        self.namespace.enter("sh", "-c", "kill -TERM -1")

    def close(self) -> None:
        self.namespace.close()
        if self._process is not None:
            self._process.wait()

    def _started(self, container: Container) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return self.namespace.start(*self._inside(container), *container.command, output=log)

    def _inside(self, container: Container) -> list[str]:
        """What comes before a command that a container is to run."""
        user = self.pod.spec["securityContext"]
        become = f"--userspec={user['runAsUser']}:{user['runAsGroup']}"
        given = {**IMAGE_ENVIRONMENT, **self._environment, **container.environment}
        return [
            *("chroot", become, "--groups=", str(self._root)),
            *("env", "--ignore-environment", f"--chdir={container.directory or '/'}"),
            *(f"{name}={value}" for name, value in given.items()),
        ]

    def _bind(self, source: Path, target: str) -> None:
        inside = f"{self._root}{target}"
        if source.is_symlink():
            Path(inside).symlink_to(source.readlink())
        else:
            self.namespace.enter("mkdir", "--parents", inside)
            self.namespace.enter("mount", "--rbind", str(source), inside)
