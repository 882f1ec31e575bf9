"""Servers, workers and a coordinator, each of which can be hurt by itself."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.chaos import coordinating
from benchmarks.chaos.hosts.host import Hosts
from benchmarks.chaos.launcher import START_SECONDS, WORKERS, Launcher
from benchmarks.chaos.servers.task_servers import TaskServers
from benchmarks.harness import coordinators
from stratagem import ClusterSpec
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy.clusters.servers import serving
from stratagem_deploy.processes.process import Process, describe_exit


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
        new_servers: Makes the servers of the job ps.
        on_line: Called with each line of the log of a server or worker.

    Attributes:
        hosts: Where they run, in the end by names such as "ps-0-1".
        servers: The servers of the job ps.
        workers: The workers.
        coordinator: The coordinator, once it is started.
    """

    def __init__(
        self,
        folder: Path,
        hosts: Hosts,
        new_servers: Callable[[Launcher], TaskServers],
        on_line: Callable[[str], None],
    ) -> None:
        self.hosts, self._folder = hosts, folder
        launcher = Launcher(folder, hosts, on_line)
        self.servers = new_servers(launcher)
        own = [launcher.host(f"worker-{index}") for index in range(WORKERS)]
        self._chief = launcher.host("chief-0")
        self.workers = [launcher.process("worker", index, host) for index, host in enumerate(own)]
        tasks = {
            "chief": [self._chief.address],
            "worker": [host.address for host in own],
            "ps": [*self.servers.addresses],
        }
        self._resolver = SimpleClusterResolver(ClusterSpec(tasks), task_type="chief", task_id=0)
        self._resolver.cluster_token = launcher.token
        self.coordinator: Coordinator

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start all, and end all at the end of the block.

        Raises:
            StratagemError: A server does not start.
        """
        with ExitStack() as stack:
            stack.enter_context(serving([*self.servers.servers, *self.workers], START_SECONDS))
            self.coordinator = Coordinator(self._started)
            stack.callback(self.coordinator.kill)
            yield

    def _started(self) -> Process:
        return coordinators.started(
            coordinating.__name__,
            self._folder,
            self._resolver,
            self._chief.door,
            self.hosts.environment,
        )

    @property
    def missing(self) -> list[str]:
        """The names of servers and workers that do not run, and should."""
        return [each.name for each in self.workers if not each.runs] + self.servers.missing
