"""How replicas introduce themselves, and which of them fit together."""

from __future__ import annotations

import os

from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.v1.log_pb2 import Kernels
from stratagem_proto.v1.replication_pb2 import Introduction, Replica
from stratagem_proto.v1.session_pb2 import Task
from stratagem_psserver.persistence.kernels import described
from stratagem_psserver.replication.calls import handshake_of
from stratagem_psserver.settings import ServerSettings


def introduction_of(settings: ServerSettings, replica: Replica, kernels: Kernels) -> Introduction:
    """Return how a replica introduces itself."""
    return Introduction(
        asking=handshake_of(settings),
        replica=replica,
        kernels=kernels,
        durability=settings.durability,
        failover_seconds=settings.failover_seconds,
        takes_over=settings.is_movable,
        arbiter=same_for_all(settings.arbiter),
        task=Task(job=settings.job, index=settings.task),
    )


def same_for_all(arbiter: str) -> str:
    """Return an --arbiter in the form in which all that mean the same one agree.

    A file may be named from another folder, and the members of etcd in another order.
    """
    scheme, _, place = arbiter.partition(":")
    if scheme == "file":
        return f"file:{os.path.abspath(place)}"
    if scheme == "etcd":
        members, _, prefix = place.partition("/")
        return f"etcd:{','.join(sorted(members.split(',')))}/{prefix}"
    return arbiter


def _task_of(introduction: Introduction) -> Task:
    """Return the task of a replica."""
    return introduction.task if introduction.HasField("task") else introduction.asking.task


def require_fitting(other: Introduction, own: Introduction, settings: ServerSettings) -> None:
    """Check that another replica can be the backup of this one.

    Raises:
        FailedPreconditionError: It is not of this task, or is started otherwise.
    """
    where = f"the replica at {other.replica.address}"
    if (task := _task_of(other)) != _task_of(own):
        raise FailedPreconditionError(
            f"{where} is of /job:{task.job}/task:{task.index}, and cannot be the backup of "
            f"{settings.label}; give both the same --task, and each task another arbiter"
        )
    if other.replica.index == own.replica.index:
        option = "--task" if settings.is_movable else "--replica"
        raise FailedPreconditionError(
            f"{where} has {option} {own.replica.index} as the primary of {settings.label} has; "
            "give each another number"
        )
    if other.kernels != own.kernels:
        raise FailedPreconditionError(
            f"{where} has {described(other.kernels)}, but the primary {described(own.kernels)}, "
            "which may compute other bits; start both alike"
        )
    if other.durability != own.durability:
        raise FailedPreconditionError(
            f"{where} has --durability {other.durability}, but the primary {own.durability}; start "
            "both alike"
        )
    if other.failover_seconds != own.failover_seconds:
        raise FailedPreconditionError(
            f"{where} has --failover-seconds {other.failover_seconds:g}, but the primary "
            f"{own.failover_seconds:g}; start both alike"
        )
    if other.arbiter not in ("", own.arbiter):
        raise FailedPreconditionError(
            f"{where} has --arbiter {other.arbiter}, but the primary {own.arbiter}, so both could "
            "come to serve; give both the same"
        )
