"""What a server knows of the cluster that its clients are in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.session_pb2 import FilteredTasks
from stratagem_psserver.cluster.device_filters import DeviceFilters
from stratagem_psserver.cluster.size import ClusterSize
from stratagem_psserver.exactly_once.session import Session


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
