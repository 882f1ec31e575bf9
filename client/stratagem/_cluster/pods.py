"""The tasks of a job among the pods of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from stratagem_proto.errors import DuplicateTaskError, FailedPreconditionError, InvalidArgumentError

# As the client of Kubernetes gives it; its classes have no types.
Pod: TypeAlias = Any

# How Kubernetes numbers the pods of a StatefulSet and of an indexed Job.
_INDEX_LABELS = ("apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index")


def _host_address(pod: Pod) -> str:
    return str(pod.status.host_ip)


def _pod_address(pod: Pod) -> str:
    return str(pod.status.pod_ip)


def _name_address(pod: Pod) -> str:
    name, service = pod.spec.hostname, pod.spec.subdomain
    if not (name and service):
        raise FailedPreconditionError(
            f"pod {pod.metadata.name!r} has no name in the DNS: it is of no headless "
            "service; set serviceName of its StatefulSet, or use address='pod'"
        )
    return f"{name}.{service}.{pod.metadata.namespace}.svc"


_ADDRESSES: Mapping[str, Callable[[Pod], str]] = {
    "host": _host_address,
    "pod": _pod_address,
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
    """Return the pods of a job by the index of their task.

    Args:
        job: The job.
        selections: The pods of each label selector.

    Returns:
        If Kubernetes numbers all pods, and there is one selector, the pods by these numbers. Else
        the pods of one selector after the other, sorted by name.

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
    told = {**(pod.metadata.annotations or {}), **(pod.metadata.labels or {})}
    return next((told[label] for label in _INDEX_LABELS if label in told), None)


def _require_running(pods: Sequence[Pod]) -> None:
    for pod in pods:
        if pod.status.phase != "Running":
            raise FailedPreconditionError(
                f'Pod "{pod.metadata.name}" is not running; phase: '
                f'"{pod.status.phase}". Wait until all pods of the job run'
            )
