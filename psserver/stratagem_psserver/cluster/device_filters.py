"""The device filters of a cluster, as far as they hide this server from tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stratagem_proto.errors import PermissionDeniedError
from stratagem_proto.v1.session_pb2 import FilteredTasks, Task
from stratagem_psserver.exactly_once.session import Session


class DeviceFilters:
    """Which tasks may not use this server, as the chief has said. Spec: FIL-2."""

    def __init__(self, server: str) -> None:
        """Hide the server, whose name this is, from nobody."""
        self._server = server
        self._filters: dict[tuple[str, int], Sequence[str]] = {}

    def learn(self, told: FilteredTasks) -> None:
        """Hide the server from these tasks and no others."""
        self._filters = {_key(one.task): tuple(one.device_filters) for one in told.tasks}

    def hidden_from(self, sessions: Iterable[Session]) -> Sequence[Session]:
        """Return those of sessions whose tasks may not use the server."""
        return [one for one in sessions if _key(one.task) in self._filters]

    def require(self, session: Session) -> None:
        """Check that the task of a session may use the server.

        Raises:
            PermissionDeniedError: It may not.
        """
        filters = self._filters.get(_key(session.task))
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


def _key(task: Task) -> tuple[str, int]:
    return task.job, task.index
