"""Synchronous steps of two servers, one of which drops what the other keeps."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import torch

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1 import session_pb2
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.psserver.synchronous.contributors import mark
from tests.psserver.wire import RawClient, encoded, sgd, update_header
from tests.waiting import eventually

_WORKERS = 2
_SECONDS = 30.0


class Worker:
    """One run of a worker, as clients of two servers."""

    def __init__(self, number: int, servers: list[ParameterServer], stack: ExitStack) -> None:
        self._number = number
        task = session_pb2.Task(job="worker", index=number)
        self.at = [
            stack.enter_context(RawClient(server.address, TOKEN, task)) for server in servers
        ]
        for client in self.at:
            client.open()

    def stage(self, step: int, enough: int = 0) -> None:
        """Stages ones on both servers, for a step that so many contributions may close."""
        for client in self.at:
            value = torch.ones(2)
            header = update_header(client.key(), sgd(), {"v": value})
            header.contribution.CopyFrom(
                pb.Contribution(
                    step=mark(step),
                    worker=self._number,
                    num_workers=_WORKERS,
                    replicas=1,
                    replicas_to_aggregate=enough,
                    reduction=REDUCTION_SUM,
                )
            )
            client.upload("Update", encoded(header, [value]), pb.UpdateResponse)

    def commit(
        self, server: int, step: int, wait: float = _SECONDS, predecessors: bool = False
    ) -> bool:
        """Commits on one server; returns whether it counts."""
        client = self.at[server]
        request = pb.CommitContributionRequest(
            key=client.key(), step=mark(step), wait_seconds=wait, predecessors=predecessors
        )
        response = client.unary("CommitContribution", request, pb.CommitContributionResponse)
        return not response.dropped

    def take(self, step: int) -> None:
        """Contributes a whole step, to the first server last."""
        self.stage(step)
        for server in (1, 0):
            self.commit(server, step)

    def leave(self, server: int) -> None:
        """Closes the session with one server."""
        client = self.at[server]
        request = session_pb2.CloseSessionRequest(session_id=client.session_id)
        client.unary("CloseSession", request, session_pb2.CloseSessionResponse)

    def values(self) -> list[list[float]]:
        return [client.read("v")[0].tolist() for client in self.at]


@contextmanager
def half_dropped() -> Iterator[tuple[list[ParameterServer], ExitStack]]:
    """Two servers to whose second step one of two workers has committed.

    Both have left the second server, which so drops the contribution; the first one keeps it, since
    one worker is still there.
    """
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ParameterServer(ServerSettings(task=task, token=TOKEN)))
            for task in range(2)
        ]
        workers = [Worker(number, servers, stack) for number in range(_WORKERS)]
        for client in workers[0].at:
            client.create(v=torch.zeros(2))
        for worker in workers:
            worker.take(1)
        workers[0].take(2)
        workers[0].leave(0)
        for worker in workers:
            worker.leave(1)
        yield servers, stack


def test_a_step_that_one_server_has_dropped_closes_on_both_or_on_none() -> None:
    with half_dropped() as (servers, stack):
        second = Worker(1, servers, stack)
        second.stage(2)
        with ThreadPoolExecutor(1) as pool:
            committing = pool.submit(second.commit, 1, 2)
            eventually(lambda: any(one.waiting for one in servers[1]._state.waits.report()))
            # What it has committed is still there on the first server, and counts there.
            first = Worker(0, servers, stack)
            first.stage(2)
            assert first.commit(1, 2)
            assert committing.result(_SECONDS)
        assert not first.commit(0, 2)
        assert second.commit(0, 2)
        assert second.values() == [[-4.0, -4.0]] * 2


def test_it_counts_nowhere_before_all_are_there_again() -> None:
    with half_dropped() as (servers, stack):
        second = Worker(1, servers, stack)
        second.stage(2)
        with pytest.raises(DeadlineExceededError, match=r"commit to step 2 .*task:0"):
            second.commit(1, 2, wait=0.0)
        assert second.values() == [[-2.0, -2.0]] * 2


def test_a_backup_worker_that_has_told_only_the_first_server_tells_the_other_once_it_is_back() -> (
    None
):
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ParameterServer(ServerSettings(task=task, token=TOKEN)))
            for task in range(2)
        ]
        fast = Worker(0, servers, stack)
        for client in fast.at:
            client.create(v=torch.zeros(2))
        fast.stage(1, enough=1)
        assert fast.commit(0, 1)
        for server in range(2):
            fast.leave(server)
        again = Worker(0, servers, stack)
        assert again.values() == [[-1.0, -1.0], [0.0, 0.0]]
        assert again.commit(1, 1, predecessors=True)
        assert again.values() == [[-1.0, -1.0]] * 2
