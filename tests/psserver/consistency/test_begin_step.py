"""Asking for leave to take a step."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch

from stratagem_proto.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    SessionLostError,
)
from stratagem_proto.v1 import consistency_pb2 as pb
from stratagem_proto.v1 import parameter_server_pb2 as pb2
from stratagem_proto.v1.session_pb2 import CloseSessionRequest, CloseSessionResponse
from stratagem_proto.wire.frames import decode_frame
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.psserver.consistency.waiters import (
    PATIENCE,
    WAITERS,
    health_seconds,
    p50_of_small_updates,
    worker,
)
from tests.psserver.process import serving
from tests.psserver.wire import SERVICE, RawClient

LOCKSTEP = pb.Consistency(mode=pb.CONSISTENCY_MODE_BOUNDED, bound=0)
ASYNC = pb.Consistency(mode=pb.CONSISTENCY_MODE_ASYNC)


@pytest.fixture
def workers(server: ParameterServer) -> Iterator[list[RawClient]]:
    with worker(server.address, 0) as first, worker(server.address, 1) as second:
        yield [first, second]


def request(
    client: RawClient,
    finished: int,
    seconds: float = PATIENCE,
    number: int | None = None,
    num_workers: int = 2,
) -> pb.BeginStepRequest:
    begin = pb.StepBegin(
        group="SGD",
        worker=client.task.index if number is None else number,
        num_workers=num_workers,
        finished=finished,
        declared=LOCKSTEP,
    )
    return pb.BeginStepRequest(session_id=client.session_id, steps=[begin], wait_seconds=seconds)


def begin(client: RawClient, finished: int, seconds: float = PATIENCE) -> int:
    message = request(client, finished, seconds)
    (grant,) = client.unary("BeginStep", message, pb.BeginStepResponse).grants
    return grant.step


def change(client: RawClient, consistency: pb.Consistency) -> int:
    message = pb.SetConsistencyRequest(key=client.key(), group="SGD", consistency=consistency)
    return client.unary("SetConsistency", message, pb.SetConsistencyResponse).step


def test_a_wait_that_ends_names_the_workers_that_are_too_slow(
    workers: list[RawClient],
) -> None:
    for client in workers:
        assert begin(client, 0) == 1
    with pytest.raises(
        DeadlineExceededError, match="task:0 has finished 1 steps, but /job:worker/task:1"
    ):
        begin(workers[0], 1, seconds=0.05)


def test_leave_is_given_once_the_slowest_has_come(workers: list[RawClient]) -> None:
    for client in workers:
        begin(client, 0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(begin, workers[0], 1)
        assert begin(workers[1], 1) == 2
        assert waiting.result(PATIENCE) == 2


def read(client: RawClient, finished: int) -> tuple[int, list[int]]:
    """Begins a step with a read; returns a value, and the step if there is leave."""
    message = pb2.ReadRequest(
        session_id=client.session_id,
        selections=[pb2.Selection(variable="v")],
        begins=request(client, finished).steps,
    )
    # A stream of one message is a unary call on the wire.
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
    call = client.channel.unary_unary(f"/{SERVICE}/Read")
    answer = call(message.SerializeToString(), timeout=PATIENCE)
    frame = decode_frame(answer, pb2.ReadHeader)
    assert frame.header is not None
    (value,) = np.frombuffer(frame.chunks[0].data, np.float32)
    return int(value), [grant.step for grant in frame.header.grants]


def test_a_read_brings_leave_only_where_that_needs_no_waiting(
    workers: list[RawClient],
) -> None:
    workers[0].create(v=torch.full((1,), 3.0))
    assert [read(client, 0) for client in workers] == [(3, [1])] * 2
    assert read(workers[0], 1) == (3, [])
    # It has been noted that the step is finished.
    assert read(workers[1], 1) == (3, [2])
    assert [read(workers[0], 1) for _ in range(2)] == [(3, [2])] * 2


def test_a_worker_whose_lease_ends_holds_nobody_back() -> None:
    with (
        ParameterServer(ServerSettings(lease_seconds=2.0)) as server,
        worker(server.address, 0, "") as first,
        worker(server.address, 1, "") as second,
    ):
        for client in (first, second):
            begin(client, 0)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(begin, first, 1)
            while not waiting.done():
                first.heartbeat()
            assert waiting.result() == 2
        with pytest.raises(SessionLostError, match="open it again"):
            begin(second, 1)


def test_a_change_reaches_those_who_wait(workers: list[RawClient]) -> None:
    for client in workers:
        begin(client, 0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(begin, workers[0], 1)
        assert change(workers[1], ASYNC) == 2
        assert waiting.result(PATIENCE) == 2
    message = pb.DescribeConsistencyRequest(session_id=workers[0].session_id)
    (group,) = (
        workers[0].unary("DescribeConsistency", message, pb.DescribeConsistencyResponse).groups
    )
    assert (group.group, group.consistency, group.since) == ("SGD", ASYNC, 2)
    assert [each.task for each in group.workers] == [
        "/job:worker/task:0",
        "/job:worker/task:1",
    ]


def test_a_consistency_that_cannot_be_is_refused(workers: list[RawClient]) -> None:
    begin(workers[0], 0)
    impossible = pb.Consistency(mode=pb.CONSISTENCY_MODE_SYNC, replicas_to_aggregate=3)
    with pytest.raises(InvalidArgumentError, match="only 2 workers"):
        change(workers[0], impossible)


@pytest.mark.long
def test_a_thousand_held_workers_delay_nobody(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as server,
        worker(server.address, 0, "") as first,
        worker(server.address, 1, "") as second,
    ):
        first.create(small=torch.zeros(100))
        alone = p50_of_small_updates(second)
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = first.channel.unary_unary(f"/{SERVICE}/BeginStep")
        # One more, who would have to come before anyone goes on.
        held = [
            call.future(
                request(first, 1, number=number, num_workers=WAITERS + 1).SerializeToString(),
                timeout=PATIENCE,
            )
            for number in range(WAITERS)
        ]
        first.heartbeat()
        assert health_seconds(server) < 0.1
        assert min(p50_of_small_updates(second) for _ in range(5)) < 2 * alone
        assert not any(answer.done() for answer in held)
        change(first, ASYNC)
        answers = [pb.BeginStepResponse.FromString(one.result()) for one in held]
    # None of them had begun a step, so the change holds from the first.
    assert {answer.grants[0].step for answer in answers} == {2}
    assert {answer.grants[0].consistency.mode for answer in answers} == {ASYNC.mode}


def test_an_earlier_run_of_a_task_cannot_move_the_clock_of_a_later_one(
    server: ParameterServer,
) -> None:
    with worker(server.address, 0) as other, worker(server.address, 1) as first:
        for client in (other, first):
            assert begin(client, 0) == 1
        with worker(server.address, 1) as second:
            assert begin(second, 0) == 1
            with pytest.raises(FailedPreconditionError, match="a later run of /job:worker/task:1"):
                begin(first, 1)
            leaving = CloseSessionRequest(session_id=second.session_id)
            second.unary("CloseSession", leaving, CloseSessionResponse)
        assert begin(first, 0) == 1
