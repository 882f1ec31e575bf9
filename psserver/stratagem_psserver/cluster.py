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
from stratagem_proto.v1.session_pb2 import FilteredTasks
from stratagem_psserver.exactly_once.sessions import Session


class KnownCluster:
    """The cluster as its chief, or a checkpoint, has described it.

    Device filters hide this server from some tasks. Spec: FIL-2. A program that places variables
    over another number of servers looks for some of them where they are not, and would create them
    anew beside values that others have kept.

    Args:
        server: The name of this server.

    Attributes:
        ps_tasks: Over how many servers variables are placed; 0 before anybody has said it.
        training: Identifies the training that the variables of all servers belong to, as in
            `CreateVariablesHeader`; empty before a program has created some.
    """

    def __init__(self, server: str) -> None:
        self.ps_tasks, self.training = 0, b""
        self._server = server
        self._filters: dict[tuple[str, int], Sequence[str]] = {}

    def learn(self, filtered: FilteredTasks | None, ps_tasks: int) -> None:
        """Take over what a chief says; None and 0 say nothing."""
        if filtered is not None:
            self._filters = {
                (one.task.job, one.task.index): tuple(one.device_filters) for one in filtered.tasks
            }
        self.ps_tasks = ps_tasks or self.ps_tasks

    def _filters_of(self, session: Session) -> Sequence[str] | None:
        return self._filters.get((session.task.job, session.task.index))

    def require(self, session: Session, ps_tasks: int) -> None:
        """Check that a client sees the same cluster.

        Args:
            session: The session that it opens.
            ps_tasks: Over how many servers it places variables; 0 if that does not matter.

        Raises:
            PermissionDeniedError: Device filters hide the server from its task.
            FailedPreconditionError: It places variables over another number of servers.
        """
        filters = self._filters_of(session)
        if filters is not None:
            raise PermissionDeniedError(
                f"{self._server} is invisible to {session.label}: its device filters "
                f"{list(filters)} hide it, as the chief has said; add {self._server!r} to them "
                "wherever the cluster's filters are set"
            )
        if ps_tasks and self.ps_tasks not in (0, ps_tasks):
            raise FailedPreconditionError(
                f"{self._server} has its part of variables that are placed over {self.ps_tasks} "
                f"parameter servers, and the cluster of {session.label} has {ps_tasks}. Give the "
                f"program all {self.ps_tasks}, or start all servers anew, with an empty "
                "--durability-folder and without --restore, and let it restore its checkpoint by "
                "strategy.restore(), which takes any number of servers",
                task=self._server,
            )

    def hidden_from(self, sessions: Iterable[Session]) -> Sequence[Session]:
        """Return those of sessions whose tasks may not use the server."""
        return [one for one in sessions if self._filters_of(one) is not None]

    def facts(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "filters": [[*task, list(filters)] for task, filters in self._filters.items()],
            "ps_tasks": self.ps_tasks,
            "training": self.training.hex(),
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore what `facts` returned; checkpoints of earlier releases lack some of it."""
        self._filters = {
            (job, index): tuple(filters) for job, index, filters in facts.get("filters", ())
        }
        self.learn(None, facts.get("ps_tasks", 0))
        self.training = bytes.fromhex(facts.get("training", ""))


def check_training(training: bytes) -> None:
    """Raise InvalidArgumentError if the name of a training has another length; empty says none."""
    if training and len(training) != SESSION_ID_BYTES:
        raise InvalidArgumentError(
            f"the identifier of a training has {SESSION_ID_BYTES} bytes; this one has "
            f"{len(training)}"
        )
