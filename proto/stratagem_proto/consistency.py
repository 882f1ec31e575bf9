"""What both ends say of consistencies."""

from __future__ import annotations

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.consistency_pb2 import (
    CONSISTENCY_MODE_ASYNC,
    CONSISTENCY_MODE_BOUNDED,
    CONSISTENCY_MODE_SYNC,
    Consistency,
)

_MODES = {
    CONSISTENCY_MODE_ASYNC: "async",
    CONSISTENCY_MODE_BOUNDED: "bounded",
    CONSISTENCY_MODE_SYNC: "sync",
}


def described(consistency: Consistency) -> str:
    """Return a consistency for messages: "async", "bounded(2)", "sync"."""
    mode = _MODES.get(consistency.mode, "none")
    if consistency.mode == CONSISTENCY_MODE_BOUNDED:
        return f"{mode}({consistency.bound})"
    if consistency.replicas_to_aggregate:
        return f"{mode}({consistency.replicas_to_aggregate})"
    return mode


def check_consistency(consistency: Consistency, num_workers: int) -> None:
    """Check that so many workers can have a consistency.

    Raises:
        InvalidArgumentError: It has no mode, or its steps need more contributions
            than there are workers.
    """
    if consistency.mode not in _MODES:
        raise InvalidArgumentError(
            f"consistency has mode {consistency.mode}; it must be one of "
            f"{', '.join(_MODES.values())}"
        )
    if consistency.replicas_to_aggregate > num_workers:
        raise InvalidArgumentError(
            f"replicas_to_aggregate is {consistency.replicas_to_aggregate}, but only "
            f"{num_workers} workers contribute to a step, once each; ask for fewer"
        )


def has_backups(consistency: Consistency, num_workers: int) -> bool:
    """Return whether a step may close without some of the workers."""
    return 0 < consistency.replicas_to_aggregate < num_workers
