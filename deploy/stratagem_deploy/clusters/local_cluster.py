"""A cluster on this machine, for tests, notebooks and trying things out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path

from stratagem import ClusterSpec
from stratagem.cluster_resolver import SimpleClusterResolver, TFConfigClusterResolver
from stratagem_deploy.certificates.subjects import LocalAuthority, Subject
from stratagem_deploy.clusters.cluster import Cluster, Worker
from stratagem_deploy.clusters.local_tasks import LocalWorker, Tasks, processes, threads
from stratagem_deploy.clusters.plan import (
    Storage,
    arbiter_folder,
    check_servers,
    planned,
)
from stratagem_deploy.clusters.servers import (
    ReplicatedServer,
    RestartableServer,
    Which,
    places_of_tasks,
    serving,
)
from stratagem_deploy.output import Screen
from stratagem_deploy.processes.resources import PrivateDirectory, ReservedAddresses
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_psserver.settings import Durability
from stratagem_rpc.certificates.presented import presenting


class LocalCluster(Cluster):
    """Parameter servers and workers on this machine.

        with LocalCluster(ps=2, workers=2) as cluster:
            losses = cluster.run(train)  # train(resolver), once per worker

    Servers listen on free ports of the loopback interface, behind a token made for this cluster.
    Leaving the block, or the death of this process however it comes, ends all tasks and removes all
    files.

    On Linux its processes are forks of processes that have loaded PyTorch before, one for servers
    and one for workers, so that they start in a moment. These stay for five minutes, for further
    clusters. What forks share besides is the seed of `hash`.
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
        durability: Durability = "none",
        durability_folder: str | os.PathLike[str] | None = None,
        replicas: int = 1,
        movable: bool = False,
        tasks: int = 0,
        tls: bool = False,
        policy: str | os.PathLike[str] | None = None,
        table_bytes: int | None = None,
        table_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        """Describe the cluster; entering the block starts it.

        Args:
            ps: Number of parameter servers; none for workers that train without.
            workers: Number of workers that `run` calls functions on; by default one, or none where
                there are worker servers.
            worker_servers: Number of workers that serve a coordinator instead: the program that
                makes its strategy from `cluster_resolver`.
            processes: Whether servers and workers are processes; worker servers then share the
                cores by OMP_NUM_THREADS, and threads of all that wait for a kernel leave their core
                to others by OMP_WAIT_POLICY, unless these are set. Otherwise they are threads of
                this process, which start in no time.
            lease_seconds: Time without a sign of a client after which a server takes it for dead;
                by default 30, and 10 for worker servers.
            start_timeout: The longest time for a server to start, in seconds.
            show_output: Whether the output of processes goes to standard error, each line after the
                name of its process. In any case an error that a process causes contains its last
                lines.
            restore: Folder of checkpoints, or its URL. Whenever a server starts, it restores its
                part of the latest checkpoint, if there is any.
            durability: What the end of a server may lose: with "none" all that no checkpoint has,
                with "snapshot" what is younger than its last image, with "log" nothing that was
                acknowledged: started again, it goes on where it was.
            durability_folder: Folder on a disk for what durability needs, a subfolder for each
                server. It is not removed.
            replicas: How many servers have the state of each task of the job ps: with 2, a backup
                has all that the primary acknowledges, and takes over when it ends.
            movable: Whether the tasks of the job ps can move between servers, by
                `strategy.servers` and `add_server`.
            tasks: How many tasks movable servers share, as many as there may be servers one day;
                each costs requests of its own. By default one for each.
            tls: Whether the processes of the cluster, this one among them, know each other by
                certificates made for it, and encrypt what they send. It takes processes=True.
            policy: File that says which tasks and roles may do what to which variables.
            table_bytes: Most bytes of memory for the rows of each server's tables, with the state
                of optimizers; colder rows are in files. By default all rows are in memory.
            table_folder: Folder on a local disk for those files; by default the system's temporary
                folder.

        Raises:
            InvalidArgumentError: A number is negative or there are no tasks, there are workers as
                well as worker servers, a folder, a policy or replicas are given without parameter
                servers, durability, its folder, replicas, movable, tasks and tls do not go
                together, the policy is not valid, or rows of tables cannot be in files there.
            FailedPreconditionError: Another number of servers wrote the checkpoint in `restore`; or
                this process is a worker of a cluster already, as under `stratagem run`.
        """
        _require_no_task()
        folders = Storage.at(
            restore, durability, durability_folder, policy, table_bytes, table_folder
        )
        plan = planned(ps, workers, worker_servers, lease_seconds, folders, replicas)
        check_servers(ps, folders, replicas, movable, tasks)
        super().__init__(replace(plan, movable=movable, tls=tls, tasks=tasks))
        if tls and not processes:
            raise InvalidArgumentError(
                "threads of one process cannot have certificates of their own; with tls=True, give "
                "processes=True"
            )
        self._processes = processes
        self._start_timeout = start_timeout
        self._screen = Screen(sys.stderr) if show_output else None
        self._addresses: dict[str, list[ReservedAddresses]] = {}
        # Where tasks are that begin on the server of another one.
        self._shared: Sequence[str] = ()
        self._tasks: Tasks | None = None

    def _start(self) -> Sequence[Worker]:
        with ExitStack() as resources:
            self._addresses = {
                job: [resources.enter_context(self._reserved(job)) for _ in range(count)]
                for job, count in {**self._plan.counts, "chief": 1}.items()
            }
            self._tasks = tasks = self._created(resources)
            servers = [*chain.from_iterable(tasks.servers.values())]
            resources.enter_context(serving(servers, self._start_timeout))
            self._shared = self._places_of_shared()
            self._resources = resources.pop_all()
        return tasks.workers

    def _places_of_shared(self) -> Sequence[str]:
        plan, own = self._plan, [str(each) for each in self._addresses["ps"]]
        if plan.tasks <= plan.ps:
            return ()
        places = places_of_tasks(own, plan.tasks, plan.token, self._start_timeout)
        return places[plan.ps :]

    def _end(self) -> None:
        self._tasks = None
        self._resources.close()

    def _reserved(self, job: str) -> ReservedAddresses:
        return ReservedAddresses(self._plan.replicas_of(job))

    def kill(self, job: str, index: int, replica: Which | None = None) -> None:
        """End a task by SIGKILL, or a server in this process with all its calls.

        A worker has a process only while `run` waits for it; a thread cannot be killed
        (`UnimplementedError`).

        Args:
            job: Its job.
            index: Its index in the job.
            replica: Which replica of a parameter server: its number, "primary" or "backup"; by
                default the primary.

        Raises:
            InvalidArgumentError: There is no such task, or it has no such replica.
            UnavailableError: No replica is the primary, or the backup, at present.
        """
        self._server(job, index, replica).kill()

    def stop(self, job: str, index: int, replica: Which | None = None) -> None:
        """End a task by SIGTERM; a server drains first. Arguments and errors as in `kill`."""
        self._server(job, index, replica).stop(self._start_timeout)

    def restart(self, job: str, index: int, replica: Which | None = None) -> None:
        """Start a server again at its address, or a worker's function from its start.

        Whatever of the task still runs is ended first: a server drains, a worker is killed. A
        replica of a parameter server comes back as the backup, which this waits for; by default
        those are started again that have ended. Arguments and errors as in `kill`.

        Raises:
            UnavailableError: The server ended instead of serving.
            DeadlineExceededError: It needed more than `start_timeout` seconds.
            FailedPreconditionError: No replica has ended, and none is named.
        """
        task = self._task(job, index)
        if isinstance(task, ReplicatedServer) and replica is not None:
            task.restart_replica(replica, self._start_timeout)
        else:
            self._require_no_replica(job, index, replica)
            task.restart(self._start_timeout)

    def add_worker_server(self) -> str:
        """Start one more worker that serves a coordinator.

            coordinator.add_worker(cluster.add_worker_server())

        It has the next index. `kill`, `stop` and `restart` know it, and so do resolvers that are
        asked for from then on.

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
        address = self._resources.enter_context(ReservedAddresses())
        server = tasks.new_server("worker", self._plan.worker_servers, address)
        self._resources.enter_context(serving([server], self._start_timeout))
        self._plan = plan
        self._addresses["worker"].append(address)
        tasks.servers["worker"].append(server)
        return str(address)

    def add_server(self) -> str:
        """Start one more parameter server, which begins without variables.

            strategy.servers.add(cluster.add_server())

        It has the next number. `kill`, `stop` and `restart` know it as a task of the job ps;
        resolvers do not, since the cluster has no more tasks than before.

        Returns:
            Its address, "host:port".

        Raises:
            FailedPreconditionError: Tasks of this cluster cannot move, or it does not run.
            UnavailableError: The server ended instead of serving.
            DeadlineExceededError: It needed more than `start_timeout` seconds.
        """
        tasks = self._running_tasks()
        if not self._plan.movable:
            raise FailedPreconditionError(
                "another server could be given nothing, since the tasks of this cluster stay where "
                "they are; make the cluster with movable=True"
            )
        address = self._resources.enter_context(ReservedAddresses())
        server = tasks.new_server("ps", len(tasks.servers["ps"]), address)
        self._resources.enter_context(serving([server], self._start_timeout))
        tasks.servers["ps"].append(server)
        return str(address)

    def _created(self, resources: ExitStack) -> Tasks:
        if not self._processes and self._plan.replicas == 1 and not self._plan.movable:
            return threads(self._plan, self._addresses, Path())
        directory = PrivateDirectory()
        resources.callback(directory.close)
        arbiter = arbiter_folder(self._plan.storage, directory.path)
        if not self._processes:
            return threads(self._plan, self._addresses, arbiter)
        authority = self._certified(directory.path, resources) if self._plan.tls else None
        return processes(self._plan, self._addresses, directory, self._show, authority)

    @staticmethod
    def _certified(directory: Path, resources: ExitStack) -> LocalAuthority:
        """Return who certifies the tasks; this process is the chief as long as they run."""
        authority = LocalAuthority(directory)
        resources.enter_context(presenting(authority.folder(Subject("chief", "chief"))))
        return authority

    def _show(self, name: str, index: int) -> Callable[[str], None] | None:
        return self._screen.labelled(name, index) if self._screen else None

    def _resolver(self, jobs: Sequence[str], job: str, index: int) -> SimpleClusterResolver:
        addresses = {name: [str(a) for a in self._addresses[name]] for name in jobs}
        if "ps" in addresses:
            addresses["ps"] += self._shared
        spec = ClusterSpec({name: tasks for name, tasks in addresses.items() if tasks})
        resolver = SimpleClusterResolver(spec, task_type=job, task_id=index)
        resolver.cluster_token = self._plan.token
        return resolver

    def _server(
        self, job: str, index: int, replica: Which | None
    ) -> RestartableServer | LocalWorker:
        """Return a replica of a task, or the only one that it has."""
        task = self._task(job, index)
        if isinstance(task, ReplicatedServer):
            return task.replica("primary" if replica is None else replica)
        self._require_no_replica(job, index, replica)
        return task

    def _require_no_replica(self, job: str, index: int, replica: Which | None) -> None:
        if replica is not None:
            raise InvalidArgumentError(
                f"{job}:{index} has no replicas, and so none that is {replica!r}; leave replica "
                "out, or make the cluster with replicas=2"
            )

    def _task(self, job: str, index: int) -> RestartableServer | LocalWorker:
        tasks = self._running_tasks()
        servers = tasks.servers.get(job, [])
        # A parameter server that was added is no task of the cluster.
        if not 0 <= index < len(servers):
            self._check(job, index)
        return servers[index] if servers else tasks.workers[index]

    def _running_tasks(self) -> Tasks:
        self._require_running()
        assert self._tasks
        return self._tasks


def _require_no_task() -> None:
    """Refuse to start a cluster in each worker of another one.

    Raises:
        FailedPreconditionError: TF_CONFIG says that this process is one of several workers, or has
            servers.
    """
    task = TFConfigClusterResolver()
    jobs = task.cluster_spec().as_dict()
    if task.task_type == "worker" and (len(jobs.get("worker", [])) > 1 or "ps" in jobs):
        name = f"/job:worker/task:{task.task_id}"
        raise FailedPreconditionError(
            f"LocalCluster would start a cluster of its own in this process, which TF_CONFIG says "
            f"is {name} of another one. Start a program with a LocalCluster by `python`; under "
            "`stratagem run` leave it out, and train by stratagem.ParameterServerStrategy()",
            task=name,
        )
