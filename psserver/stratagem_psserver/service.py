"""The state of a server, and what answers calls about it."""

from __future__ import annotations

from collections.abc import Callable

from stratagem_proto.serving.handshake import challenge_handler
from stratagem_proto.serving.status import StatusService
from stratagem_proto.v1.replication_pb2 import ReplicationStatus
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_psserver.checkpoints.saving import Saves
from stratagem_psserver.rpcs.status import ParameterServerFacts
from stratagem_psserver.servicer import (
    checkpoint_handler,
    closure_handler,
    data_handler,
    service_handler,
    succession_handler,
)
from stratagem_psserver.state import ServerState


class Service:
    """Answers calls about one state.

    Args:
        state: The state.
        replication: Returns the replica's part among those of its task; None if it is the only
            one.

    Attributes:
        state: The state.
        saves: The checkpoints that it writes.
        status: Describes it.
        handlers_for_all: The handlers of calls that are answered whether clients are served or not:
            those that ask for the status, or for a challenge.
        handlers: The handlers of all other calls.
    """

    def __init__(
        self, state: ServerState, replication: Callable[[], ReplicationStatus] | None = None
    ) -> None:
        self.state, self.saves = state, Saves(state)
        self._facts, self._replication = ParameterServerFacts(state, self.saves), replication
        self.status = StatusService(
            state.handshakes, state.incarnation, state.figures, self._fill_status
        )
        boundary = state.boundary()
        challenges = challenge_handler(state.handshakes, lambda: state.incarnation, boundary)
        self.handlers_for_all = (self.status.handler(), challenges)
        self.handlers = (
            service_handler(state),
            checkpoint_handler(state, self.saves),
            closure_handler(state),
            data_handler(state),
            succession_handler(state),
        )

    async def _fill_status(self, status: GetStatusResponse, with_variables: bool) -> None:
        await self._facts.fill(status, with_variables)
        if self._replication is not None:
            status.parameter_server.replication.CopyFrom(self._replication())
