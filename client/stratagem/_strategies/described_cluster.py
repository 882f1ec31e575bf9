"""The cluster that a strategy has been made for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem_proto.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


def require_described(
    strategy: AnyStrategy, cluster_spec: Any, task_type: str | None, task_id: int | None
) -> None:
    """Check that a description of a cluster is that of the strategy's own.

    Args:
        strategy: The strategy.
        cluster_spec: A cluster, or nothing.
        task_type: The job of this process, or None.
        task_id: Its task, or None.

    Raises:
        InvalidArgumentError: It says something else than the strategy's resolver, or the strategy
            has none.
    """
    given = {
        "cluster_spec": _as_dict(cluster_spec) or None,
        "task_type": task_type or None,
        "task_id": task_id if task_type else task_id or None,
    }
    known = _known(strategy.cluster_resolver)
    for name, value in given.items():
        if value is not None and value != known.get(name):
            raise InvalidArgumentError(
                f"`configure` got {name}={value!r}, but {type(strategy).__name__} was "
                f"made for {known.get(name)!r}, and keeps it; pass a ClusterResolver "
                "to the constructor of a strategy for several workers"
            )


def _known(resolver: Any) -> dict[str, Any]:
    if resolver is None:
        return {}
    return {
        "cluster_spec": _as_dict(resolver.cluster_spec()),
        "task_type": resolver.task_type,
        "task_id": resolver.task_id,
    }


def _as_dict(cluster_spec: Any) -> Any:
    if not cluster_spec:
        return None
    # Late: programs without a cluster need no protobuf.
    from stratagem._cluster.spec import ClusterSpec

    return ClusterSpec(cluster_spec).as_dict()
