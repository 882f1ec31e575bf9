"""Servers with backups, workers and a coordinator, each of which can be hurt by itself."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos import coordinating
from benchmarks.chaos.hosts.host import Host, Hosts
from benchmarks.harness import coordinators
from stratagem import ClusterSpec
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy.clusters.replicated_server import ReplicatedServer
from stratagem_deploy.clusters.replication import replica_options
from stratagem_deploy.clusters.server_process import ServerCommand, ServerProcess
from stratagem_deploy.clusters.servers import serving
from stratagem_deploy.processes.child import start_program
from stratagem_deploy.processes.process import Process, describe_exit, share_of_cores

SERVERS = WORKERS = 2

# Processes load PyTorch, on a machine that may be busy.
START_SECONDS = 300.0
# The longest time that a process takes to end in order, before it is killed.
DRAIN_SECONDS = 120.0
_VERIFY_SECONDS = 2.0


@dataclass(frozen=True)
class _CommandThere(ServerCommand):
    """The command of a server on a host.

    Attributes:
        door: What comes before it.
    """

    door: tuple[str, ...] = ()

    def line(self, ready_file: Path) -> list[str]:
        return [*self.door, *super().line(ready_file)]


class Coordinator:
    """The program of the coordinator, which goes on where one before was killed.

    Args:
        start: Starts it.
    """

    def __init__(self, start: Callable[[], Process]) -> None:
        self._start, self._process = start, start()
        self._is_down = False

    def send(self, signum: int) -> None:
        """Send it a signal."""
        self._process.send(signum)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._is_down = True
        self.send(signal.SIGKILL)
        self.await_end()

    def await_end(self) -> None:
        """Wait until its process has ended."""
        self._process.wait()

    def start(self) -> None:
        """Start it again after `kill`."""
        self._process = self._start()
        self._is_down = False

    @property
    def runs(self) -> bool:
        """Whether it has not ended, in whatever way."""
        return self._process.exit_code is None

    @property
    def has_ended(self) -> bool:
        """Whether it came to its end."""
        return self._process.exit_code == 0

    @property
    def failure(self) -> str:
        """How it ended that was not to; "" if it did not."""
        code = self._process.exit_code
        if self._is_down or not code:
            return ""
        return f"the coordinator ended with {describe_exit(code)}:\n{self._process.tail()}"


class Cluster:
    """Its processes, and where they run.

    Args:
        folder: For what they write.
        hosts: Where they are to run.
        on_line: Called with each line of a server's log.

    Attributes:
        hosts: Where they run, in the end by names such as "ps-0-1".
        replicas: The replicas of each server.
        servers: The same as tasks.
        workers: The workers.
        resolver: The cluster as its chief sees it.
        coordinator: The coordinator, once it is started.
    """

    def __init__(self, folder: Path, hosts: Hosts, on_line: Callable[[str], None]) -> None:
        self.hosts, self._folder, self._on_line = hosts, folder, on_line
        self._token = secrets.token_urlsafe(32)
        self._token_file = folder / "token"
        self._token_file.touch(mode=0o600)
        self._token_file.write_text(self._token)
        places = [
            [hosts.add(f"ps-{index}-{each}") for each in range(2)] for index in range(SERVERS)
        ]
        own = [hosts.add(f"worker-{index}") for index in range(WORKERS)]
        self._chief = hosts.add("chief-0")
        self.replicas = [
            [self._replica(index, number, host) for number, host in enumerate(pair)]
            for index, pair in enumerate(places)
        ]
        self.servers = [
            ReplicatedServer(f"ps:{index}", self.replicas[index], addresses(pair), self._token)
            for index, pair in enumerate(places)
        ]
        self.workers = [self._worker(index, host) for index, host in enumerate(own)]
        tasks = {
            "chief": [self._chief.address],
            "worker": addresses(own),
            "ps": [",".join(addresses(pair)) for pair in places],
        }
        self.resolver = SimpleClusterResolver(ClusterSpec(tasks), task_type="chief", task_id=0)
        self.resolver.cluster_token = self._token
        self.coordinator: Coordinator

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start all, and end all at the end of the block.

        Raises:
            StratagemError: A server does not start.
        """
        with ExitStack() as stack:
            stack.enter_context(serving([*self.servers, *self.workers], START_SECONDS))
            self.coordinator = Coordinator(self._started)
            stack.callback(self.coordinator.kill)
            yield

    def _started(self) -> Process:
        return coordinators.started(
            coordinating.__name__,
            self._folder,
            self.resolver,
            self._chief.door,
            self.hosts.environment,
        )

    def _replica(self, index: int, number: int, host: Host) -> ServerProcess:
        options = (
            *replica_options(2, number, self._folder / "arbiter"),
            *("--advertise", host.address),
            *("--verify-seconds", str(_VERIFY_SECONDS)),
        )
        return self._process("ps", index, host, options, number)

    def _worker(self, index: int, host: Host) -> ServerProcess:
        return self._process("worker", index, host, (), None)

    def _process(
        self, job: str, index: int, host: Host, options: Sequence[str], number: int | None
    ) -> ServerProcess:
        environment = {**self.hosts.environment, **share_of_cores(WORKERS)}
        given = ("--insecure", *options)
        command = _CommandThere(
            job, index, host.bind, self._token_file, given, environment, number, host.door
        )
        return ServerProcess(command, show=self._on_line, start=start_program)

    @property
    def missing(self) -> list[str]:
        """The names of servers and workers that do not run."""
        processes = [*self.workers, *(each for pair in self.replicas for each in pair)]
        return [each.name for each in processes if not each.runs]


def addresses(hosts: Sequence[Host]) -> list[str]:
    """Return where others reach hosts."""
    return [host.address for host in hosts]
