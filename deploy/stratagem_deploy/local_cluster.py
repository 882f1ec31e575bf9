"""A cluster on this machine, for tests, notebooks and trying things out."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from stratagem import ClusterSpec
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy.addresses import ReservedAddress
from stratagem_deploy.call import Call
from stratagem_deploy.private_directory import PrivateDirectory
from stratagem_deploy.screen import Screen
from stratagem_deploy.server_process import ServerCommand, ServerProcess
from stratagem_deploy.servers import Server, ServerThread, serving
from stratagem_deploy.team import Team
from stratagem_deploy.workers import ProcessWorker, ThreadWorker, Worker
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_psserver.settings import ServerSettings


class LocalCluster:
    """Parameter servers and workers on this machine.

        with LocalCluster(ps=2, workers=2) as cluster:
            losses = cluster.run(train)  # train(resolver), once per worker

    Servers listen on free ports of the loopback interface, behind a token made for
    this cluster. Leaving the block, or the death of this process however it comes,
    ends all processes and removes all files.
    """

    def __init__(  # noqa: PLR0913 - independent settings, most by name
        self,
        ps: int = 1,
        workers: int = 1,
        *,
        processes: bool = False,
        lease_seconds: float = 30.0,
        start_timeout: float = 60.0,
        show_output: bool = False,
        restore: str | os.PathLike[str] | None = None,
    ) -> None:
        """Describes the cluster; entering the block starts it.

        Args:
            ps: Number of parameter servers; none for workers that train without.
            workers: Number of workers.
            processes: Whether servers and workers are processes. Otherwise they are
                threads of this process, which start in no time.
            lease_seconds: Time without a call after which a server takes a client
                for dead.
            start_timeout: Longest time that a server may take to start, in seconds.
            show_output: Whether what processes write goes to standard error, each
                line behind the name of its process. What they wrote last is in the
                errors that they cause either way.
            restore: Folder of checkpoints: each server begins with its part of the
                latest one, if there is one yet, also when it is started again.

        Raises:
            InvalidArgumentError: There would be nobody, or less than that; or no server
                that could restore anything.
        """
        if min(ps, workers) < 0 or not ps + workers:
            raise InvalidArgumentError(
                f"a cluster of {ps} parameter servers and {workers} workers cannot "
                "be; ask for at least one of them"
            )
        if restore is not None and not ps:
            raise InvalidArgumentError(
                f"a cluster without parameter servers cannot restore {str(restore)!r}; "
                "ask for servers, or restore it by strategy.restore()"
            )
        self._counts = {"ps": ps, "worker": workers, "chief": 1}
        self._processes = processes
        self._lease_seconds = lease_seconds
        self._start_timeout = start_timeout
        self._restore = "" if restore is None else os.path.abspath(restore)
        self._screen = Screen(sys.stderr) if show_output else None
        self._token = secrets.token_urlsafe(32)
        self._addresses: dict[str, list[ReservedAddress]] = {}
        self._running = False
        self._servers: Sequence[Server] = ()
        self._workers: Sequence[Worker] = ()

    def __enter__(self) -> LocalCluster:
        with ExitStack() as resources:
            self._addresses = {
                job: [self._reserved(resources) for _ in range(count)]
                for job, count in self._counts.items()
            }
            self._create(resources)
            resources.enter_context(serving(self._servers, self._start_timeout))
            self._resources = resources.pop_all()
        self._running = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running = False
        self._servers, self._workers = (), ()
        self._resources.close()

    @property
    def cluster_resolver(self) -> SimpleClusterResolver:
        """The cluster as a program outside of its workers sees it, being the chief.

        Only there has the cluster a chief: in what `run` does, worker 0 is it.
        """
        return self._resolver(("chief", "ps", "worker"), "chief", 0)

    def resolver(self, job: str, index: int) -> SimpleClusterResolver:
        """Returns the cluster as the given task sees it.

        There is an "evaluator" 0 besides servers and workers, which `run` leaves to
        you.

        Raises:
            InvalidArgumentError: There is no such task.
        """
        if (job, index) != ("evaluator", 0):
            self._check(job, index)
        return self._resolver(("ps", "worker"), job, index)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Calls `function(resolver, *arguments)` on every worker, at the same time.

        Worker processes are started for this call and get the function by
        cloudpickle; their environment is this process's own. When one fails, the
        others are ended; threads, which cannot be, are left to themselves.

        Args:
            function: Called once per worker with the resolver of its task.
            arguments: Further arguments, the same for all.

        Returns:
            What each worker's call returned, by worker index.

        Raises:
            Exception: What the first call that failed raised; its `__cause__` names
                the worker and shows the traceback there.
            AbortedError: A worker's process ended without a result.
            InvalidTypeError: The function, an argument or a result cannot be sent.
            FailedPreconditionError: The cluster does not run, or another `run` does.
        """
        self._check_running()
        resolvers = [self.resolver("worker", i) for i in range(len(self._workers))]
        calls = [Call(function, (resolver, *arguments)) for resolver in resolvers]
        return self._team.run(calls)

    def kill(self, job: str, index: int) -> None:
        """Ends a task by SIGKILL, or a server in this process with all its calls.

        A worker has a process only while `run` waits for it; a thread cannot be
        killed (`UnimplementedError`).
        """
        self._task(job, index).kill()

    def stop(self, job: str, index: int) -> None:
        """Ends a task by SIGTERM; a server drains first. Errors as in `kill`."""
        self._task(job, index).stop(self._start_timeout)

    def restart(self, job: str, index: int) -> None:
        """Starts a server again at its address, or a worker's function from its start.

        Whatever of the task still runs is ended first: a server drains, a worker is
        killed. Errors as in `kill`.

        Raises:
            UnavailableError: The server ended instead of serving.
            DeadlineExceededError: It needed more than `start_timeout` seconds.
        """
        self._task(job, index).restart(self._start_timeout)

    def _reserved(self, resources: ExitStack) -> ReservedAddress:
        address = ReservedAddress()
        resources.callback(address.close)
        return address

    def _create(self, resources: ExitStack) -> None:
        if self._processes:
            directory = PrivateDirectory()
            resources.callback(directory.close)
            self._create_processes(directory)
        else:
            self._create_threads()
        self._team = Team(self._workers)

    def _create_processes(self, directory: PrivateDirectory) -> None:
        token_file = directory.write_secret("token", self._token)
        options = ["--lease-seconds", str(self._lease_seconds)]
        if self._restore:
            options += ["--restore", self._restore]
        self._servers = [
            ServerProcess(
                ServerCommand(index, str(address), token_file, tuple(options)),
                show=self._show("ps", index),
            )
            for index, address in enumerate(self._addresses["ps"])
        ]
        self._workers = [
            ProcessWorker(
                f"worker:{index}", directory.path, self._show("worker", index)
            )
            for index in range(self._counts["worker"])
        ]

    def _create_threads(self) -> None:
        self._servers = [
            ServerThread(
                ServerSettings(
                    bind=str(address),
                    task=index,
                    token=self._token,
                    lease_seconds=self._lease_seconds,
                    restore=self._restore,
                )
            )
            for index, address in enumerate(self._addresses["ps"])
        ]
        self._workers = [
            ThreadWorker(f"worker:{index}") for index in range(self._counts["worker"])
        ]

    def _show(self, job: str, index: int) -> Callable[[str], None] | None:
        return self._screen.labelled(f"{job}:{index}", index) if self._screen else None

    def _resolver(
        self, jobs: Sequence[str], job: str, index: int
    ) -> SimpleClusterResolver:
        self._check_running()
        addresses = {name: [str(a) for a in self._addresses[name]] for name in jobs}
        spec = ClusterSpec({name: tasks for name, tasks in addresses.items() if tasks})
        resolver = SimpleClusterResolver(spec, task_type=job, task_id=index)
        resolver.cluster_token = self._token
        return resolver

    def _task(self, job: str, index: int) -> Server | Worker:
        self._check(job, index)
        self._check_running()
        return self._servers[index] if job == "ps" else self._workers[index]

    def _check(self, job: str, index: int) -> None:
        count = self._counts[job] if job in ("ps", "worker") else 0
        if not 0 <= index < count:
            raise InvalidArgumentError(
                f"the cluster has no task {job}:{index}; it has {self._counts['ps']} "
                f"tasks of ps and {self._counts['worker']} of worker, from index 0"
            )

    def _check_running(self) -> None:
        if not self._running:
            raise FailedPreconditionError(
                "the cluster does not run; use it inside `with LocalCluster(...) as "
                "cluster:`"
            )
