"""A cluster on this machine, for tests, notebooks and trying things out."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from types import TracebackType
from typing import Any

from stratagem import ClusterSpec
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy.addresses import ReservedAddress
from stratagem_deploy.call import Call
from stratagem_deploy.local_tasks import Plan, Tasks, processes, threads
from stratagem_deploy.private_directory import PrivateDirectory
from stratagem_deploy.screen import Screen
from stratagem_deploy.servers import Server, serving
from stratagem_deploy.team import Team
from stratagem_deploy.workers import Worker
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError


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
        workers: int | None = None,
        *,
        worker_servers: int = 0,
        processes: bool = False,
        lease_seconds: float | None = None,
        start_timeout: float = 60.0,
        show_output: bool = False,
        restore: str | os.PathLike[str] | None = None,
    ) -> None:
        """Describes the cluster; entering the block starts it.

        Args:
            ps: Number of parameter servers; none for workers that train without.
            workers: Number of workers that `run` calls functions on; by default one,
                or none where there are worker servers.
            worker_servers: Number of workers that serve a coordinator instead: the
                program that makes its strategy from `cluster_resolver`.
            processes: Whether servers and workers are processes; worker servers then
                share the cores by OMP_NUM_THREADS, unless that is set. Otherwise they
                are threads of this process, which start in no time.
            lease_seconds: Time without a sign of a client after which a server takes
                it for dead; by default 30, and 10 for worker servers.
            start_timeout: Longest time that a server may take to start, in seconds.
            show_output: Whether what processes write goes to standard error, each
                line behind the name of its process. What they wrote last is in the
                errors that they cause either way.
            restore: Folder of checkpoints: each server begins with its part of the
                latest one, if there is one yet, also when it is started again.

        Raises:
            InvalidArgumentError: There would be nobody, or less than that; workers
                beside worker servers; or no server that could restore anything.
        """
        self._plan = Plan(
            ps,
            workers if workers is not None else int(not worker_servers),
            worker_servers,
            token=secrets.token_urlsafe(32),
            lease_seconds=lease_seconds,
            restore="" if restore is None else os.path.abspath(restore),
        )
        self._processes = processes
        self._start_timeout = start_timeout
        self._screen = Screen(sys.stderr) if show_output else None
        self._addresses: dict[str, list[ReservedAddress]] = {}
        self._running = False
        self._tasks: Tasks | None = None

    def __enter__(self) -> LocalCluster:
        with ExitStack() as resources:
            self._addresses = {
                job: [self._reserved(resources) for _ in range(count)]
                for job, count in {**self._plan.counts, "chief": 1}.items()
            }
            self._tasks = tasks = self._created(resources)
            self._team = Team(tasks.workers)
            servers = [*chain.from_iterable(tasks.servers.values())]
            resources.enter_context(serving(servers, self._start_timeout))
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
        self._tasks = None
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
            FailedPreconditionError: The cluster does not run, or another `run` does, or
                its workers serve a coordinator.
        """
        self._check_running()
        if self._plan.worker_servers:
            raise FailedPreconditionError(
                "the workers of this cluster serve a coordinator and make no calls of "
                "run(); make the cluster with workers instead of worker_servers"
            )
        resolvers = [self.resolver("worker", i) for i in range(self._plan.workers)]
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

    def add_worker_server(self) -> str:
        """Starts one more worker that serves a coordinator.

            coordinator.add_worker(cluster.add_worker_server())

        It has the next index. `kill`, `stop` and `restart` know it, and so do resolvers
        that are asked for from then on.

        Returns:
            Its address, "host:port".

        Raises:
            InvalidArgumentError: The cluster has workers of the other kind.
            UnavailableError: It ended instead of serving.
            DeadlineExceededError: It needed more than `start_timeout` seconds.
            FailedPreconditionError: The cluster does not run.
        """
        tasks = self._running_tasks()
        plan = replace(self._plan, worker_servers=self._plan.worker_servers + 1)
        address = self._reserved(self._resources)
        server = tasks.new_server("worker", self._plan.worker_servers, str(address))
        self._resources.enter_context(serving([server], self._start_timeout))
        self._plan = plan
        self._addresses["worker"].append(address)
        tasks.servers["worker"].append(server)
        return str(address)

    def _reserved(self, resources: ExitStack) -> ReservedAddress:
        address = ReservedAddress()
        resources.callback(address.close)
        return address

    def _created(self, resources: ExitStack) -> Tasks:
        if not self._processes:
            return threads(self._plan, self._addresses)
        directory = PrivateDirectory()
        resources.callback(directory.close)
        return processes(self._plan, self._addresses, directory, self._show)

    def _show(self, job: str, index: int) -> Callable[[str], None] | None:
        return self._screen.labelled(f"{job}:{index}", index) if self._screen else None

    def _resolver(
        self, jobs: Sequence[str], job: str, index: int
    ) -> SimpleClusterResolver:
        self._check_running()
        addresses = {name: [str(a) for a in self._addresses[name]] for name in jobs}
        spec = ClusterSpec({name: tasks for name, tasks in addresses.items() if tasks})
        resolver = SimpleClusterResolver(spec, task_type=job, task_id=index)
        resolver.cluster_token = self._plan.token
        return resolver

    def _task(self, job: str, index: int) -> Server | Worker:
        self._check(job, index)
        tasks = self._running_tasks()
        servers = tasks.servers[job]
        return servers[index] if servers else tasks.workers[index]

    def _check(self, job: str, index: int) -> None:
        counts = self._plan.counts
        if not 0 <= index < counts.get(job, 0):
            raise InvalidArgumentError(
                f"the cluster has no task {job}:{index}; it has {counts['ps']} "
                f"tasks of ps and {counts['worker']} of worker, from index 0"
            )

    def _running_tasks(self) -> Tasks:
        self._check_running()
        assert self._tasks
        return self._tasks

    def _check_running(self) -> None:
        if not self._running:
            raise FailedPreconditionError(
                "the cluster does not run; use it inside `with LocalCluster(...) as "
                "cluster:`"
            )
