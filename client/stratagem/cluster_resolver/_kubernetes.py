"""The resolver of a cluster of Kubernetes pods: how they are listed, and which tasks they are."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from stratagem._cluster.tasks import ClusterSpec
from stratagem.cluster_resolver._resolvers import ClusterResolver
from stratagem_proto.errors import (
    DuplicateTaskError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)

# As the client of Kubernetes gives it; its classes have no types.
Pod: TypeAlias = Any

# How Kubernetes numbers the pods of a StatefulSet and of an indexed Job.
_INDEX_LABELS = ("apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index")


class KubernetesExecutableLocation(enum.Enum):
    """Where the program runs, and so how it finds the API server."""

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


def core_api(location: KubernetesExecutableLocation) -> Any:
    """Return a `CoreV1Api` by which this process asks the API server.

    Args:
        location: In a pod, the configuration is its service account; outside of the cluster, the
            file that `kubectl` uses.

    Raises:
        ImportError: The client library is not installed.
        InvalidArgumentError: There is no such location.
        FailedPreconditionError: There is no such configuration.
    """
    if not isinstance(location, KubernetesExecutableLocation):
        raise InvalidArgumentError(
            "The executable location provided is invalid: it is a "
            f"KubernetesExecutableLocation, not {location!r}"
        )
    client, config = _libraries()
    settings = client.Configuration()
    within = location is KubernetesExecutableLocation.WITHIN_CLUSTER
    load = config.load_incluster_config if within else config.load_kube_config
    try:
        load(client_configuration=settings)
    except config.ConfigException as error:
        raise FailedPreconditionError(
            f"the configuration of Kubernetes cannot be read: {error}. Outside of a pod use "
            "KubernetesExecutableLocation.OFF_CLUSTER, which reads what KUBECONFIG names"
        ) from error
    return client.CoreV1Api(client.ApiClient(settings))


def list_pods(api: Any, selector: str, namespace: str | None) -> Sequence[Pod]:
    """Return the pods that a label selector finds, by a `CoreV1Api` of the client library.

    They are in one namespace, or in all for None.

    Raises:
        UnavailableError: The API server cannot be reached, or refuses.
    """
    try:
        if namespace is None:
            return list(api.list_pod_for_all_namespaces(label_selector=selector).items)
        return list(api.list_namespaced_pod(namespace, label_selector=selector).items)
    except _failures() as error:
        where = "all namespaces" if namespace is None else f"namespace {namespace!r}"
        raise UnavailableError(
            f"the API server of Kubernetes does not list the pods {selector!r} of {where}: "
            f"{_reason(error)}. The service account needs the verb 'list' for pods"
        ) from error


def _failures() -> tuple[type[Exception], ...]:
    try:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError
    except ImportError:
        # Another client was given, with errors of its own.
        return ()
    return ApiException, HTTPError


def _reason(error: Any) -> str:
    # The text of an answer of the API has all of its headers.
    status = getattr(error, "status", None)
    return f"{status} {error.reason}" if status else str(error)


def _libraries() -> tuple[Any, Any]:
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise ImportError(
            "The Kubernetes Python client must be installed before using the "
            "KubernetesClusterResolver: run `pip install 'stratagem[kubernetes]'`"
        ) from error
    return client, config


def _name_address(pod: Pod) -> str:
    name, service = pod.spec.hostname, pod.spec.subdomain
    if not (name and service):
        raise FailedPreconditionError(
            f"pod {pod.metadata.name!r} has no name in the DNS: it is of no headless "
            "service; set serviceName of its StatefulSet, or use address='pod'"
        )
    return f"{name}.{service}.{pod.metadata.namespace}.svc"


_ADDRESSES: Mapping[str, Callable[[Pod], str]] = {
    "host": lambda pod: str(pod.status.host_ip),
    "pod": lambda pod: str(pod.status.pod_ip),
    "dns": _name_address,
}


def address_kind(kind: str) -> Callable[[Pod], str]:
    """Return what gives the host part of a pod's address.

    Raises:
        InvalidArgumentError: There is no such kind.
    """
    if kind not in _ADDRESSES:
        raise InvalidArgumentError(f"address is {kind!r}; it is one of {', '.join(_ADDRESSES)}")
    return _ADDRESSES[kind]


def numbered(job: str, selections: Sequence[Sequence[Pod]]) -> dict[int, Pod]:
    """Return the pods of a job, given by label selector, by the index of their task.

    If Kubernetes numbers all pods, and there is one selector, the indices are these numbers. Else
    the pods of one selector follow the other's, sorted by name.

    Raises:
        FailedPreconditionError: A pod does not run.
        DuplicateTaskError: Two pods have one number.
    """
    for pods in selections:
        _require_running(pods)
    if len(selections) == 1 and selections[0]:
        indices = [_index(pod) for pod in selections[0]]
        if None not in indices:
            return _by_index(job, selections[0])
    ordered = [
        pod for pods in selections for pod in sorted(pods, key=lambda pod: pod.metadata.name)
    ]
    return dict(enumerate(ordered))


def _by_index(job: str, pods: Sequence[Pod]) -> dict[int, Pod]:
    tasks: dict[int, Pod] = {}
    for pod in pods:
        index = int(_index(pod) or 0)
        if index in tasks:
            raise DuplicateTaskError(
                f"the pods {tasks[index].metadata.name!r} and {pod.metadata.name!r} "
                f"are both task {index} of job {job!r}; let its label selector find "
                "the pods of one StatefulSet or Job"
            )
        tasks[index] = pod
    return tasks


def _index(pod: Pod) -> str | None:
    # Before Kubernetes 1.28 the number within a Job was an annotation only.
    known = {**(pod.metadata.annotations or {}), **(pod.metadata.labels or {})}
    return next((known[label] for label in _INDEX_LABELS if label in known), None)


def _require_running(pods: Sequence[Pod]) -> None:
    for pod in pods:
        if pod.status.phase != "Running":
            raise FailedPreconditionError(
                f'Pod "{pod.metadata.name}" is not running; phase: '
                f'"{pod.status.phase}". Wait until all pods of the job run'
            )


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
