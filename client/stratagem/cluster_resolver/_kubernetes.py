"""The resolver of a cluster of Kubernetes pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratagem._cluster.pods import (
    KubernetesExecutableLocation,
    Pod,
    address_kind,
    core_api,
    list_pods,
    numbered,
)
from stratagem._cluster.spec import ClusterSpec
from stratagem.cluster_resolver._base import ClusterResolver
from stratagem_proto.errors import InvalidArgumentError


class KubernetesClusterResolver(ClusterResolver):
    """A resolver that asks the API server of Kubernetes which pods there are.

    Needs the package `kubernetes`: `pip install 'stratagem[kubernetes]'`. The pods of a StatefulSet
    or of an indexed Job have the task numbers that Kubernetes gave them; others are numbered by
    name::

        resolver = KubernetesClusterResolver(
            {"ps": ["app=ps"], "worker": ["app=worker"]},
            namespace="training",
            address="dns",
            pod_name=os.environ["HOSTNAME"],
        )

    Args:
        job_to_label_mapping: Label selectors of the pods by job name; by default `{"worker":
            ["job-name=tensorflow"]}`.
        tf_server_port: Port on which every task listens.
        rpc_layer: Protocol in front of addresses.
        override_client: A `kubernetes.client.CoreV1Api` to use.
        executable_location: How to find the API server without one.
        namespace: Where to look for pods; None for all namespaces.
        address: By what a task is reached: "host", the address of the pod's machine (for pods with
            `hostNetwork`); "pod", the pod's own; or "dns", its name in its headless service, which
            outlives a restart of the pod.
        pod_name: Name of the pod of this process; then its task is that of this pod.

    Raises:
        ImportError: The package `kubernetes` is not installed.
        InvalidArgumentError: `executable_location` or `address` is no such thing.
        FailedPreconditionError: Kubernetes is not configured here.

    Spec: RES-12, RES-13.
    """

    def __init__(  # noqa: PLR0913 - the signature of tf.distribute, and what follows
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: KubernetesExecutableLocation = (
            KubernetesExecutableLocation.WITHIN_CLUSTER
        ),
        *,
        namespace: str | None = None,
        address: str = "host",
        pod_name: str | None = None,
    ) -> None:
        super().__init__()
        self.rpc_layer = rpc_layer
        self._selectors = job_to_label_mapping or {"worker": ["job-name=tensorflow"]}
        self._port = tf_server_port
        self._namespace = namespace
        self._host_of = address_kind(address)
        self._pod_name = pod_name
        self._api = override_client or core_api(executable_location)

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster of the pods that run now.

        Raises:
            FailedPreconditionError: A pod is not running.
            DuplicateTaskError: Two pods have the number of one task.
            UnavailableError: The API server cannot be reached, or refuses.
        """
        return ClusterSpec(
            {
                job: {index: f"{self._host_of(pod)}:{self._port}" for index, pod in pods.items()}
                for job, pods in self._pods().items()
            }
        )

    def _pods(self) -> dict[str, dict[int, Pod]]:
        return {
            job: numbered(
                job, [list_pods(self._api, selector, self._namespace) for selector in all_]
            )
            for job, all_ in self._selectors.items()
        }

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, by default of this one; "" if not known.

        Raises:
            InvalidArgumentError: The cluster has no such task.

        Spec: RES-13.
        """
        return self._own_master(task_type, task_id, rpc_layer)

    def _found_task_type(self) -> str | None:
        return self._task_type or self._own_task()[0]

    def _found_task_id(self) -> int | None:
        own = self._task_id
        return self._own_task()[1] if own is None else own

    def _own_task(self) -> tuple[str, int] | tuple[None, None]:
        if self._pod_name is None:
            return None, None
        for job, pods in self._pods().items():
            for index, pod in pods.items():
                if pod.metadata.name == self._pod_name:
                    return job, index
        raise InvalidArgumentError(
            f"pod {self._pod_name!r} is in no job: none of the label selectors "
            f"{dict(self._selectors)} finds it"
        )
