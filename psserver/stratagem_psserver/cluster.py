"""What a server knows of the cluster that its clients are in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
)
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.session_pb2 import FilteredTasks, Task
from stratagem_psserver.exactly_once.sessions import Session


class DeviceFilters:
    """Which tasks may not use this server, as the chief has said. Spec: FIL-2."""

    def __init__(self, server: str) -> None:
        """Hide the server, whose name this is, from nobody."""
        self._server = server
        self._filters: dict[tuple[str, int], Sequence[str]] = {}

    def learn(self, told: FilteredTasks) -> None:
        """Hide the server from these tasks and no others."""
        self._filters = {_task_key(one.task): tuple(one.device_filters) for one in told.tasks}

    def hidden_from(self, sessions: Iterable[Session]) -> Sequence[Session]:
        """Return those of sessions whose tasks may not use the server."""
        return [one for one in sessions if _task_key(one.task) in self._filters]

    def require(self, session: Session) -> None:
        """Check that the task of a session may use the server.

        Raises:
            PermissionDeniedError: It may not.
        """
        filters = self._filters.get(_task_key(session.task))
        if filters is not None:
            raise PermissionDeniedError(
                f"{self._server} is invisible to {session.label}: its device filters "
                f"{list(filters)} hide it, as the chief has said; add {self._server!r} to them "
                "wherever the cluster's filters are set"
            )

    def facts(self) -> list[Any]:
        """Return everything as JSON."""
        return [[*task, list(filters)] for task, filters in self._filters.items()]

    def restore(self, facts: Sequence[Any]) -> None:
        """Restore what `facts` returned."""
        self._filters = {(job, index): tuple(filters) for job, index, filters in facts}


def _task_key(task: Task) -> tuple[str, int]:
    return task.job, task.index


class ClusterSize:
    """The number of tasks of the job ps, as the chief or a checkpoint has said.

    A program that places variables over another number looks for some of them where they are not,
    and would create them anew beside values that others have kept.

    Attributes:
        known: The number; 0 before anybody has said it.
    """

    def __init__(self, server: str) -> None:
        """Know no number; `server` is the name of this one."""
        self._server = server
        self.known = 0

    def learn(self, told: int) -> None:
        """Take a number for the one, unless it is 0."""
        self.known = told or self.known

    def require(self, told: int, client: str) -> None:
        """Check the number that a client says, while this server has variables.

        Args:
            told: The number; 0 if the client places no variables.
            client: The name of the client.

        Raises:
            FailedPreconditionError: It is another one.
        """
        if told and self.known not in (0, told):
            raise FailedPreconditionError(
                f"{self._server} has its part of variables that are placed over {self.known} "
                f"parameter servers, and the cluster of {client} has {told}. Give the "
                f"program all {self.known}, or start all servers anew, with an empty "
                "--durability-folder and without --restore, and let it restore its checkpoint by "
                "strategy.restore(), which takes any number of servers",
                task=self._server,
            )


class KnownCluster:
    """The cluster as its chief has described it.

    Attributes:
        size: Over how many servers variables are placed.
        training: Identifies the training that the variables of all servers belong to, as in
            `CreateVariablesHeader`; empty before a program has created some.
    """

    def __init__(self, server: str) -> None:
        """Know nothing; `server` is the name of this one."""
        self.size = ClusterSize(server)
        self.training = b""
        self._filters = DeviceFilters(server)

    def learn(self, filtered: FilteredTasks | None, ps_tasks: int) -> None:
        """Take over what a chief says; None and 0 say nothing."""
        if filtered is not None:
            self._filters.learn(filtered)
        self.size.learn(ps_tasks)

    def require(self, session: Session, ps_tasks: int) -> None:
        """Check that a client sees the same cluster.

        Args:
            session: The session that it opens.
            ps_tasks: Over how many servers it places variables; 0 if that does not matter.

        Raises:
            PermissionDeniedError: Device filters hide the server from its task.
            FailedPreconditionError: It places variables over another number of servers.
        """
        self._filters.require(session)
        self.size.require(ps_tasks, session.label)

    def hidden_from(self, sessions: Iterable[Session]) -> Sequence[Session]:
        """Return those of sessions whose tasks may not use the server."""
        return self._filters.hidden_from(sessions)

    def facts(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "filters": self._filters.facts(),
            "ps_tasks": self.size.known,
            "training": self.training.hex(),
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore what `facts` returned; checkpoints of earlier releases lack some of it."""
        self._filters.restore(facts.get("filters", ()))
        self.size.learn(facts.get("ps_tasks", 0))
        self.training = bytes.fromhex(facts.get("training", ""))


def check_training(training: bytes) -> None:
    """Check what a program says that the training is; empty says nothing.

    Raises:
        InvalidArgumentError: It has another length.
    """
    if training and len(training) != SESSION_ID_BYTES:
        raise InvalidArgumentError(
            f"the identifier of a training has {SESSION_ID_BYTES} bytes; this one has "
            f"{len(training)}"
        )
