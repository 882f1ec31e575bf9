"""Which chief may decide about a task."""

from __future__ import annotations

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.arbitration_pb2 import ChiefIntroduction
from stratagem_proto.v1.session_pb2 import Task
from stratagem_psserver.settings import ServerSettings


def name_of(introduction: ChiefIntroduction) -> str:
    """Return what a chief is called in messages, which tell two programs apart."""
    task, number = introduction.asking.task, introduction.chief.hex()[:8]
    return f"/job:{task.job}/task:{task.index} (chief {number})"


def require_memory(settings: ServerSettings) -> None:
    """Check that no replica comes back with a state of views that nobody knows any more.

    Raises:
        InvalidArgumentError: It would, from its disk.
    """
    if settings.durability != "none":
        raise InvalidArgumentError(
            "--arbiter chief keeps in the chief's memory which replica serves, but the replicas of "
            f"{settings.label} would have their state on disk: once all programs have ended, "
            "nobody would know which of the states is the last. Give another arbiter, or "
            "--durability none"
        )


def require_chief(introduction: ChiefIntroduction, settings: ServerSettings) -> None:
    """Check that whoever calls may decide which replica of a task serves.

    Raises:
        InvalidArgumentError: It does not say who it is.
        FailedPreconditionError: It is not of a cluster with these replicas.
    """
    name = name_of(introduction)
    if len(introduction.chief) != SESSION_ID_BYTES:
        raise InvalidArgumentError(f"{name} has no number of {SESSION_ID_BYTES} bytes")
    called = introduction.server
    if called != Task(job=settings.job, index=settings.task):
        raise FailedPreconditionError(
            f"{name} takes {settings.label} for /job:{called.job}/task:{called.index}; correct the "
            f"addresses of the {settings.job} job in its cluster"
        )
    if introduction.replicas != settings.replicas:
        raise FailedPreconditionError(
            f"the cluster of {name} lists {introduction.replicas} addresses of {settings.label}, "
            f"which has --replicas {settings.replicas}; list them all, with commas between"
        )
