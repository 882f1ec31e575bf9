"""Workers that step together by requests of their own, wherever their server is at present."""

from __future__ import annotations

from contextlib import suppress

import torch

from stratagem_proto.errors import AbortedError, DeadlineExceededError
from stratagem_proto.protocol import session_name
from stratagem_proto.v1 import closed_step_pb2, session_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.state import ServerState
from tests.psserver.synchronous.contributors import mark
from tests.psserver.wire import RawClient, encoded, sgd, update_header
from tests.waiting import eventually

WORKERS = 2


class Worker:
    """One of two workers, which step the variable "v"."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._task = session_pb2.Task(job="worker", index=number)
        self.session = RawClient("localhost:1", "").session_id

    def at(self, server: ParameterServer) -> RawClient:
        """Its session with a server, which is to be opened."""
        client = RawClient(server.address, "", self._task)
        client.session_id = self.session
        return client

    def stage(self, server: ParameterServer, step: int) -> None:
        """Stages ones for a step."""
        value = torch.ones(2)
        with self.at(server) as client:
            client.sequence = client.open().last_sequence
            header = update_header(client.key(), sgd(), {"v": value})
            contribution = pb.Contribution(
                step=mark(step),
                worker=self._number,
                reduction=REDUCTION_SUM,
                num_workers=WORKERS,
                replicas=1,
            )
            header.contribution.CopyFrom(contribution)
            client.upload("Update", encoded(header, [value]), pb.UpdateResponse)

    def contribute(self, server: ParameterServer, step: int, wait: float) -> None:
        """Commits ones to a step; waits until it is complete, if there is time to wait."""
        self.stage(server, step)
        with self.at(server) as client:
            client.sequence = client.open().last_sequence
            commit = pb.CommitContributionRequest(
                key=client.key(), step=mark(step), wait_seconds=wait
            )
            with suppress(DeadlineExceededError):
                client.unary("CommitContribution", commit, pb.CommitContributionResponse)

    def values(self, server: ParameterServer) -> list[float]:
        with self.at(server) as client:
            client.open()
            found: list[float] = client.read("v")[0].tolist()
            return found

    def waits(self, server: ParameterServer, step: int) -> bool:
        """Whether it can wait for a step, and is not told that the step lacks a lost worker."""
        asked = closed_step_pb2.ListClosedStepsRequest(
            session_id=self.session, group=mark(step).group, step=step, wait_seconds=0.01
        )
        with self.at(server) as client:
            client.open()
            try:
                client.unary("ListClosedSteps", asked, closed_step_pb2.ListClosedStepsResponse)
            except AbortedError:
                return False
            return True

    def lose(self, server: ParameterServer) -> None:
        """Has its lease run out, and waits until the server has noticed it."""
        server._loop.run(_end_lease(server, self.session))
        eventually(lambda: not server._loop.run(_is_open(server, self.session)))


async def _end_lease(server: ParameterServer, session_id: bytes) -> None:
    server._state.ledger.session(session_name(session_id), 0.0).expires = 0.0


async def _is_open(server: ParameterServer, session_id: bytes) -> bool:
    state: ServerState = server._state
    return any(session.id == session_name(session_id) for session in state.ledger.opened())


def losing(server: ParameterServer) -> tuple[Worker, Worker]:
    """Two workers, of which the second was lost before it contributed to step 2."""
    with RawClient(server.address, "") as client:
        client.open()
        client.create(v=torch.zeros(2))
    first, second = map(Worker, range(WORKERS))
    first.contribute(server, 1, 0.0)
    second.contribute(server, 1, 30.0)
    first.contribute(server, 2, 0.0)
    second.lose(server)
    return first, second
