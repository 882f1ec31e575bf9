"""A cluster whose tasks are actors of Ray."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from stratagem import ClusterSpec
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy.clusters.cluster import Cluster
from stratagem_deploy.clusters.plan import Storage, check_servers, planned
from stratagem_deploy.clusters.servers import serving
from stratagem_deploy.on_ray.actors import Directory, RayServer, RayWorker, Site, connected, load
from stratagem_deploy.processes.process import equal_order_of_sets
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import ResourceExhaustedError, UnavailableError, UnimplementedError
from stratagem_psserver.settings import Durability

Resources = Mapping[str, float]
"""Amounts by the names that Ray has for them, such as "CPU" and "GPU"."""


def _options_in_bundle(group: Any, number: int, amounts: Resources) -> dict[str, Any]:
    """Return the options with which an actor starts in a bundle of a placement group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    others = dict(amounts)
    return {
        "num_cpus": others.pop("CPU", 0),
        "num_gpus": others.pop("GPU", 0),
        "memory": others.pop("memory", None),
        "resources": others,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, number),
    }


@contextmanager
def _reserved(
    bundles: Sequence[Resources], strategy: str, timeout: float
) -> Iterator[Sequence[dict[str, Any]]]:
    """Reserve resources for the block, all or none; actors that still run at its end are ended.

    Yields the options with which each actor starts.

    Args:
        bundles: How much for each actor.
        strategy: How Ray spreads them over nodes, for instance "PACK".
        timeout: How long to wait for it, in seconds.

    Raises:
        ResourceExhaustedError: Ray has not as much, or others use it.
    """
    util = load().util
    group = util.placement_group([dict(bundle) for bundle in bundles], strategy)
    try:
        if not group.wait(timeout):
            raise _lacking(bundles, strategy, timeout)
        yield [_options_in_bundle(group, *each) for each in enumerate(bundles)]
    finally:
        util.remove_placement_group(group)


def _lacking(bundles: Sequence[Resources], strategy: str, timeout: float) -> ResourceExhaustedError:
    ray = load()
    names = sorted({name for bundle in bundles for name in bundle})
    asked = {name: sum(bundle.get(name, 0) for bundle in bundles) for name in names}
    there, free = ray.cluster_resources(), ray.available_resources()
    amounts = ", ".join(
        f"{name} {asked[name]:g} of {there.get(name, 0):g}, {free.get(name, 0):g} free"
        for name in names
    )
    return ResourceExhaustedError(
        f"Ray had no room for {len(bundles)} tasks within {timeout:g} s, placed by "
        f"{strategy}: asked for {amounts}. Ask for less by ps_resources and "
        "worker_resources, end what else runs, or add nodes"
    )


class RayClusterResolver(ClusterResolver):
    """A resolver that asks, at each call, where tasks are now.

    Args:
        directory: Name of the actor that knows.
        jobs: Of which jobs.
        task_type: Job of this process.
        task_id: Index of this process in its job.
        token: The cluster's secret.
    """

    def __init__(
        self, directory: str, jobs: Sequence[str], task_type: str, task_id: int, token: str
    ) -> None:
        super().__init__(task_type, task_id, environment="ray")
        self._directory = directory
        self._jobs = tuple(jobs)
        self.cluster_token = token

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster; to a worker, once all workers have started.

        Raises:
            UnavailableError: The program that started the cluster has ended.
        """
        ray = load()
        wait = self.task_type == "worker"
        try:
            directory = ray.get_actor(self._directory)
            found = directory.addresses.remote(self._jobs, wait=wait)
            return ClusterSpec(ray.get(found))
        except (ValueError, ray.exceptions.RayActorError) as error:
            raise UnavailableError(
                f"the tasks of the cluster are not known any more: {error}"
            ) from error

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, by default of this one.

        Raises:
            InvalidArgumentError: The cluster has no such task.
        """
        return self._own_master(task_type, task_id, rpc_layer)


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
        folders = Storage.at(restore, durability, durability_folder, policy)
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
            options = resources.enter_context(
                _reserved(
                    [self._bundles[job] for job, _ in tasks],
                    self._placement_strategy,
                    self._start_timeout,
                )
            )
            self._directory = self._opened_directory(resources)
            again: dict[str, Any] = {
                "max_restarts": self._restarts,
                "max_task_retries": self._restarts,
                "runtime_env": {"env_vars": equal_order_of_sets()},
            }
            sites = {
                task: Site(*task, self._directory_name, {**mine, **again})
                for task, mine in zip(tasks, options, strict=True)
            }
            self._servers = {
                task: RayServer(sites[task], self._plan) for task in _tasks(self._plan.served)
            }
            servers = [*self._servers.values()]
            resources.enter_context(serving(servers, self._start_timeout))
            self._resources = resources.pop_all()
        workers = range(self._plan.workers)
        self._workers = [RayWorker(sites["worker", index]) for index in workers]
        return self._workers

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
