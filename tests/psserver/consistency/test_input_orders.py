"""What workers report of the data that they divide."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stratagem_proto.errors import InvalidArgumentError, PermissionDeniedError
from stratagem_proto.input_order import MAX_REPORTED
from stratagem_proto.v1 import consistency_pb2 as pb
from stratagem_proto.v1.barrier_pb2 import BarrierRequest, BarrierResponse
from stratagem_proto.v1.parameter_server_pb2 import ReadRequest
from stratagem_proto.v1.session_pb2 import ROLE_EVALUATOR, ROLE_WORKER, Task
from stratagem_psserver.consistency.barriers import MAX_REMEMBERED, InputOrders
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.psserver.consistency.waiters import worker
from tests.psserver.wire import RawClient

DIFFERENT = "task:1 and /job:worker/task:0 have read different data as batch 0 of pass 0"


def read(batch: int | None, digest: int, **fields: Any) -> pb.InputDigest:
    return pb.InputDigest(batch=batch, digest=digest, **fields)


def session(index: int, life: int = 0) -> Session:
    return Session(bytes([index, life]), ROLE_WORKER, Task(job="worker", index=index))


def test_a_difference_is_told_to_all_until_they_read_a_later_dataset() -> None:
    orders, workers = InputOrders(), [session(number) for number in range(3)]
    orders.report(workers[0], [read(0, 1, first=True), read(1, 2)])
    orders.report(workers[2], [read(0, 1, first=True)])
    with pytest.raises(InvalidArgumentError, match=DIFFERENT):
        orders.report(workers[1], [read(0, 5, first=True)])
    for each in workers:
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=DIFFERENT):
                orders.require_alike(each)
            with pytest.raises(InvalidArgumentError, match=DIFFERENT):
                orders.report(each, [read(2, 3)])
        orders.report(each, [])
        orders.report(each, [read(0, 7, dataset=1)])
        orders.require_alike(each)


def test_a_worker_that_is_started_again_is_compared_with_others_that_are() -> None:
    orders = InputOrders()
    for number in (0, 1):
        orders.report(session(number), [read(0, 1, first=True)])
    orders.session_ended(session(1).id)
    # Where it goes on only its program knows.
    orders.report(session(1, 1), [read(0, 2, first=True)])
    orders.report(session(0), [read(1, 4)])
    orders.report(session(1, 1), [read(1, 5)])
    orders.session_ended(session(0).id)
    with pytest.raises(InvalidArgumentError, match="task:0 and /job:worker/task:1"):
        orders.report(session(0, 1), [read(0, 3, first=True)])


def test_a_run_after_all_have_left_is_compared_from_the_beginning() -> None:
    orders = InputOrders()
    orders.report(session(0), [read(0, 1, first=True)])
    orders.report(session(0, 1), [read(0, 1, first=True)])
    for life in (0, 1):
        orders.session_ended(session(0, life).id)
    orders.report(session(0, 2), [read(0, 2, first=True)])
    with pytest.raises(InvalidArgumentError, match=DIFFERENT):
        orders.report(session(1), [read(0, 3, first=True)])


def test_a_server_that_was_started_again_compares_none_of_those_who_go_on() -> None:
    orders = InputOrders()
    orders.report(session(0), [read(0, 1)])
    orders.report(session(1), [read(0, 2)])


def test_the_end_of_a_pass_is_no_batch() -> None:
    orders = InputOrders()
    orders.report(session(0), [read(0, 1, first=True), read(1, 0)])
    with pytest.raises(InvalidArgumentError, match=r"task:1 has batch 1 .*task:0 has come to the"):
        orders.report(session(1), [read(0, 1, first=True), read(1, 2)])


def test_a_server_remembers_so_many_batches() -> None:
    orders = InputOrders()
    reads = [read(number, 1) for number in range(MAX_REMEMBERED + 10)]
    reads[0].first = True
    for at in range(0, len(reads), MAX_REPORTED):
        orders.report(session(0), reads[at : at + MAX_REPORTED])
    assert len(orders._reports) == MAX_REMEMBERED
    orders.report(session(1), [read(9, 2, first=True)])
    with pytest.raises(InvalidArgumentError, match="batch 11 of"):
        orders.report(session(1), [read(11, 2)])
    with pytest.raises(InvalidArgumentError, match="1025 batches at once; 1024 are the most"):
        orders.report(session(1), reads[: MAX_REPORTED + 1])


# Over the wire.


@pytest.fixture
def workers(server: ParameterServer) -> Iterator[list[RawClient]]:
    with worker(server.address, 0) as first, worker(server.address, 1) as second:
        yield [first, second]


def report(client: RawClient, *inputs: pb.InputDigest) -> pb.BeginStepResponse:
    request = pb.BeginStepRequest(session_id=client.session_id, inputs=inputs)
    return client.unary("BeginStep", request, pb.BeginStepResponse)


def test_a_worker_that_waits_hears_of_a_difference(workers: list[RawClient]) -> None:
    first, second = workers
    assert report(first, read(0, 1, first=True)) == pb.BeginStepResponse()
    told: list[str] = []

    def meet() -> None:
        request = BarrierRequest(
            session_id=first.session_id, name="end", num_tasks=2, wait_seconds=30
        )
        with pytest.raises(InvalidArgumentError) as raised:
            first.unary("Barrier", request, BarrierResponse)
        told.append(str(raised.value))

    waiting = threading.Thread(target=meet)
    waiting.start()
    with pytest.raises(InvalidArgumentError, match=DIFFERENT) as raised:
        report(second, read(0, 2, first=True))
    waiting.join(30)
    assert [str(raised.value)] == told


def test_a_read_reports_inputs_and_one_without_them_is_as_before(workers: list[RawClient]) -> None:
    first, second = workers
    report(first, read(0, 1, first=True))
    request = ReadRequest(session_id=second.session_id, inputs=[read(0, 2, first=True)])
    with pytest.raises(InvalidArgumentError, match=DIFFERENT):
        second.select(request)
    for client in workers:
        header, values = client.select(ReadRequest(session_id=client.session_id))
        assert (list(header.versions), values) == ([], [])


def test_an_evaluator_reports_nothing(server: ParameterServer) -> None:
    with RawClient(server.address, TOKEN, role=ROLE_EVALUATOR) as client:
        client.open()
        request = ReadRequest(session_id=client.session_id, inputs=[read(0, 1, first=True)])
        with pytest.raises(PermissionDeniedError, match="BeginStep"):
            client.select(request)
