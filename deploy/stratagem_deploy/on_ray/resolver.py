"""The resolver of a cluster whose tasks are actors of Ray."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import ClusterSpec
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy.on_ray.library import load
from stratagem_proto.errors import UnavailableError


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
