"""A cluster whose tasks are actors of Ray."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from stratagem_deploy.clusters.cluster import Cluster
from stratagem_deploy.clusters.plan import planned
from stratagem_deploy.clusters.replication import check_servers
from stratagem_deploy.clusters.servers import serving
from stratagem_deploy.clusters.storage import storage
from stratagem_deploy.on_ray.directory import Directory
from stratagem_deploy.on_ray.library import connected, load
from stratagem_deploy.on_ray.reservation import RayReservation, Resources, reserved
from stratagem_deploy.on_ray.resolver import RayClusterResolver
from stratagem_deploy.on_ray.tasks import RayServer, RayWorker, Site
from stratagem_deploy.processes.addresses import ReservedAddress
from stratagem_deploy.processes.process import equal_order_of_sets
from stratagem_proto.errors import UnimplementedError
from stratagem_psserver.settings import Durability

_ONE_CPU: Resources = {"CPU": 1}


class RayCluster(Cluster):
    """Parameter servers and workers as actors of Ray, on the nodes that Ray chooses.

        with RayCluster(ps=2, workers=8, restore="/shared/run") as cluster:
            losses = cluster.run(train)  # train(resolver), once per worker

    It uses the Ray that the program has connected to, else the one that `ray.init()` finds or
    starts. All nodes need the same versions of Python and Stratagem, and the program's modules.
    What tasks send is protected by a token made for this cluster, and not encrypted.

    Ray starts a task again whose process ends, on another node if it must. A server then begins
    with the last checkpoint in `restore`, at its old address if that is free; where it is not,
    clients learn the new one. A worker makes its call from the beginning, and finds the variables
    that the servers keep.
    """

    def __init__(  # noqa: PLR0913 - independent settings, most by name
        self,
        ps: int = 1,
        workers: int | None = None,
        *,
        worker_servers: int = 0,
        ps_resources: Resources = _ONE_CPU,
        worker_resources: Resources = _ONE_CPU,
        placement_strategy: str = "SPREAD",
        restarts: int = 3,
        lease_seconds: float | None = None,
        start_timeout: float = 60.0,
        restore: str | os.PathLike[str] | None = None,
        durability: Durability = "none",
        durability_folder: str | os.PathLike[str] | None = None,
        policy: str | os.PathLike[str] | None = None,
        replicas: int = 1,
    ) -> None:
        """Describe the cluster; entering the block starts it.

        Args:
            ps: Number of parameter servers; none for workers that train without.
            workers: Number of workers that `run` calls functions on; by default one, or none where
                there are worker servers.
            worker_servers: Number of workers that serve a coordinator instead: the program that
                makes its strategy from `cluster_resolver`.
            ps_resources: What Ray reserves for each parameter server, by its names: `{"CPU": 2,
                "memory": 8e9}`.
            worker_resources: Likewise for each worker, as in `{"CPU": 4, "GPU": 1}`.
            placement_strategy: How Ray places the tasks on nodes: "PACK", "SPREAD", "STRICT_PACK"
                or "STRICT_SPREAD".
            restarts: How often Ray starts each task again; -1 for no limit.
            lease_seconds: Time without a sign of a client after which a server takes it for dead;
                by default 30, and 10 for worker servers.
            start_timeout: The longest time for Ray to reserve resources, and then for the servers
                to start, in seconds.
            restore: Folder of checkpoints on a file system of all nodes. Whenever a server starts,
                it restores its part of the latest checkpoint, if there is any.
            durability: What the end of a server may lose: with "none" all that no checkpoint has,
                with "snapshot" what is younger than its last image, with "log" nothing that was
                acknowledged: started again, it goes on where it was.
            durability_folder: Folder on a file system of all nodes for what durability needs, a
                subfolder for each server. It is not removed.
            policy: File on a file system of all nodes that says which tasks and roles may do what
                to which variables.
            replicas: 1: on Ray, servers have no replicas yet.

        Raises:
            InvalidArgumentError: A number is negative or there are no tasks, there are workers as
                well as worker servers, a folder or a policy is given without parameter servers,
                durability and its folder do not go together, or the policy is not valid.
            FailedPreconditionError: Another number of servers wrote the checkpoint in `restore`.
            UnimplementedError: Servers are to have replicas.

        Entering the block raises `ImportError` if Ray is not installed, `ResourceExhaustedError` if
        it has not enough resources, `UnavailableError` if a server ends instead of serving, and
        `DeadlineExceededError` if a server does not start in time.
        """
        if replicas != 1:
            raise UnimplementedError(
                f"replicas is {replicas}, but on Ray servers have no replicas yet; leave it out, "
                "and use durability='log' to lose nothing"
            )
        folders = storage(restore, durability, durability_folder, policy)
        super().__init__(planned(ps, workers, worker_servers, lease_seconds, folders))
        check_servers(ps, folders)
        self._bundles = {"ps": ps_resources, "worker": worker_resources}
        self._placement_strategy = placement_strategy
        self._restarts = restarts
        self._start_timeout = start_timeout
        self._directory_name = f"stratagem-{secrets.token_hex(8)}"

    def _start(self) -> Sequence[RayWorker]:
        with ExitStack() as resources:
            resources.enter_context(connected())
            tasks = [*_tasks(self._plan.counts)]
            room = resources.enter_context(
                reserved(
                    [self._bundles[job] for job, _ in tasks],
                    self._placement_strategy,
                    self._start_timeout,
                )
            )
            self._directory = self._opened_directory(resources)
            sites = self._sites(room, tasks)
            self._servers = {
                task: RayServer(sites[task], self._plan) for task in _tasks(self._plan.served)
            }
            servers = [*self._servers.values()]
            resources.enter_context(serving(servers, self._start_timeout))
            self._resources = resources.pop_all()
        workers = range(self._plan.workers)
        self._workers = [RayWorker(sites["worker", index]) for index in workers]
        return self._workers

    def _sites(
        self, room: RayReservation, tasks: Sequence[tuple[str, int]]
    ) -> Mapping[tuple[str, int], Site]:
        """Return where each task is to be, by job and index."""
        return {
            task: Site(*task, self._directory_name, self._options(room, bundle))
            for bundle, task in enumerate(tasks)
        }

    def _opened_directory(self, resources: ExitStack) -> Any:
        """Start the directory, which knows this program as the chief."""
        ray = load()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = ray.get_runtime_context().get_node_id()
        options = {
            "name": self._directory_name,
            "num_cpus": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False),
        }
        counts = {**self._plan.counts, "chief": 1}
        directory = ray.remote(Directory).options(**options).remote(counts)
        resources.callback(ray.kill, directory)
        here_address = ReservedAddress(str(ray.util.get_node_ip_address()))
        chief = resources.enter_context(here_address)
        ray.get(directory.publish.remote("chief", 0, str(chief)))
        return directory

    def _options(self, room: RayReservation, bundle: int) -> dict[str, Any]:
        again = {"max_restarts": self._restarts, "max_task_retries": self._restarts}
        return {
            **room.options(bundle),
            **again,
            "runtime_env": {"env_vars": equal_order_of_sets()},
        }

    def _begin_run(self) -> None:
        # A worker must not find the address that another one had in the last run.
        load().get(self._directory.forget.remote("worker"))

    def _end(self) -> None:
        self._resources.close()

    def kill(self, job: str, index: int) -> None:
        """End the process of a task as a crash would; Ray starts it again.

        Raises:
            InvalidArgumentError: There is no such task.
            FailedPreconditionError: It is a worker, which have processes only while `run` waits for
                them; or the cluster does not run.
        """
        self._check(job, index)
        self._require_running()
        server = self._servers.get((job, index))
        (server or self._workers[index]).kill()

    def _resolver(self, jobs: Sequence[str], job: str, index: int) -> RayClusterResolver:
        return RayClusterResolver(self._directory_name, jobs, job, index, self._plan.token)


def _tasks(counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for job, count in counts.items():
        for index in range(count):
            yield job, index
