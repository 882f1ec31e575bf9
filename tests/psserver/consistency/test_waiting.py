"""Calls that wait for other workers, and those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import torch

from stratagem_proto.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    SessionLostError,
    UnavailableError,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1 import session_pb2
from stratagem_proto.v1.barrier_pb2 import BarrierRequest, BarrierResponse
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM
from stratagem_proto.v1.variable_requests_pb2 import (
    DeleteVariablesRequest,
    DeleteVariablesResponse,
)
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
from tests.psserver.wire import SERVICE, RawClient, encoded, sgd, update_header

Waiter = Iterator[bytes]


@pytest.fixture
def workers(server: ParameterServer) -> Iterator[list[RawClient]]:
    """Two workers on a server that hosts "w", two zeros."""
    with worker(server.address, 0) as first, worker(server.address, 1) as second:
        first.create(w=torch.zeros(2))
        yield [first, second]


def contribution(
    client: RawClient,
    gradients: dict[str, torch.Tensor],
    step: int = 1,
    lr: float = 1.0,
) -> pb.UpdateHeader:
    header = update_header(client.key(), sgd(lr), gradients)
    header.contribution.CopyFrom(
        pb.Contribution(
            step=pb.StepMark(group="SGD", step=step),
            worker=client.task.index,
            num_workers=2,
            replicas=1,
            reduction=REDUCTION_SUM,
        )
    )
    return header


def stage(client: RawClient, gradient: list[float], step: int = 1, lr: float = 1.0) -> None:
    gradients = {"w": torch.tensor(gradient)}
    header = contribution(client, gradients, step, lr)
    messages = encoded(header, list(gradients.values()))
    assert not client.upload("Update", messages, pb.UpdateResponse).versions


def commit(client: RawClient, step: int = 1) -> None:
    request = pb.CommitContributionRequest(
        key=client.key(), step=pb.StepMark(group="SGD", step=step)
    )
    client.unary("CommitContribution", request, pb.CommitContributionResponse)


def after(step: int, seconds: float = PATIENCE) -> pb.ReadRequest:
    return pb.ReadRequest(
        selections=[pb.Selection(variable="w")],
        after=pb.StepMark(group="SGD", step=step),
        wait_seconds=seconds,
    )


def waiting(client: RawClient, request: pb.ReadRequest) -> Waiter:
    """A read that is under way."""
    request.session_id = client.session_id
    call: grpc.UnaryStreamMultiCallable[bytes, bytes]
    call = client.channel.unary_stream(f"/{SERVICE}/Read")
    return call(request.SerializeToString(), timeout=PATIENCE)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_step_is_applied_once_all_have_committed(
    workers: list[RawClient], order: tuple[int, int]
) -> None:
    for index in order:
        stage(workers[index], [1.0, 10.0 * (index + 1)])
    commit(workers[order[0]])
    assert workers[0].listing() == {"w": 1}
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(workers[0].select, after(1))
        commit(workers[order[1]])
        header, (value,) = reading.result(PATIENCE)
    assert value.tolist() == [-2.0, -30.0]
    assert header.versions == [2]


def test_a_wait_that_ends_names_the_workers_that_are_missing(
    workers: list[RawClient],
) -> None:
    stage(workers[0], [1.0, 1.0])
    commit(workers[0])
    stage(workers[1], [1.0, 1.0])
    with pytest.raises(DeadlineExceededError, match="of /job:worker/task:1 are missing"):
        workers[0].select(after(1, seconds=0.05))
    assert workers[0].listing() == {"w": 1}


def test_workers_with_different_learning_rates_are_both_named(
    workers: list[RawClient],
) -> None:
    stage(workers[0], [1.0, 1.0], lr=0.5)
    with pytest.raises(InvalidArgumentError, match=r"task:1 and .*task:0 .*'lr'"):
        stage(workers[1], [1.0, 1.0], lr=0.1)


def test_a_contribution_that_comes_too_late_is_refused(
    workers: list[RawClient],
) -> None:
    for client in workers:
        stage(client, [1.0, 1.0])
    for client in workers:
        commit(client)
    before = workers[0].everything()
    with pytest.raises(FailedPreconditionError, match="go on with step 2"):
        stage(workers[1], [1.0, 1.0])
    assert workers[0].everything() == before


def test_a_step_that_cannot_be_applied_fails_those_who_wait(
    workers: list[RawClient],
) -> None:
    for client in workers:
        stage(client, [1.0, 1.0])
    commit(workers[0])
    reading = waiting(workers[0], after(1))
    request = DeleteVariablesRequest(key=workers[1].key(), names=["w"])
    workers[1].unary("DeleteVariables", request, DeleteVariablesResponse)
    with pytest.raises(LookupError):
        commit(workers[1])
    with pytest.raises(grpc.RpcError, match="no variable 'w'"):
        list(reading)


def test_a_session_that_ends_while_it_sends_stages_nothing(
    workers: list[RawClient],
) -> None:
    def frames() -> Iterator[bytes]:
        header = contribution(workers[0], {"w": torch.ones(2)})
        first, *rest = encoded(header, [torch.ones(2)], chunk_bytes=4)
        yield first
        request = session_pb2.CloseSessionRequest(session_id=workers[0].session_id)
        workers[0].unary("CloseSession", request, session_pb2.CloseSessionResponse)
        yield from rest

    with pytest.raises(SessionLostError, match="open it again"):
        workers[0].upload("Update", frames(), pb.UpdateResponse)
    with worker(workers[0].address, 0) as successor:
        stage(successor, [1.0, 1.0])


def test_waiting_for_a_worker_whose_lease_ends_fails_by_its_name() -> None:
    with (
        ParameterServer(ServerSettings(lease_seconds=2.0)) as server,
        worker(server.address, 0, "") as first,
        worker(server.address, 1, "") as second,
    ):
        first.create(w=torch.zeros(2))
        for client in (first, second):
            stage(client, [1.0, 1.0])
        for client in (first, second):
            commit(client)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(first.select, after(2))
            while not reading.done():
                first.heartbeat()
            with pytest.raises(AbortedError, match="lease of /job:worker/task:1"):
                reading.result()
        with pytest.raises(SessionLostError, match="open it again"):
            second.listing()
        assert second.open().last_sequence == 2
        for client in (first, second):
            stage(client, [1.0, 1.0], step=2)
        for client in (first, second):
            commit(client, step=2)
        assert first.select(after(2))[1][0].tolist() == [-4.0, -4.0]


def test_a_barrier_opens_for_all_and_remembers_that_it_did(
    workers: list[RawClient],
) -> None:
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda client: arrive(client, PATIENCE), workers))
    arrive(workers[0], 0.0)


def test_a_barrier_that_stays_closed_names_who_came(workers: list[RawClient]) -> None:
    with pytest.raises(DeadlineExceededError, match="have arrived: /job:worker/task:1"):
        arrive(workers[1], 0.05)


def arrive(client: RawClient, seconds: float) -> None:
    request = BarrierRequest(
        session_id=client.session_id, name="b", num_tasks=2, wait_seconds=seconds
    )
    client.unary("Barrier", request, BarrierResponse)


def test_a_server_that_stops_wakes_those_who_wait() -> None:
    with (
        ParameterServer(ServerSettings()) as server,
        worker(server.address, 0, "") as client,
    ):
        client.create(w=torch.zeros(2))
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(client.select, after(1))
            reading_begun(client)
            server.stop()
            with pytest.raises(UnavailableError):
                reading.result(PATIENCE)


def reading_begun(client: RawClient) -> None:
    """Returns once the server has answered a call made after the reading's."""
    client.heartbeat()


@pytest.mark.unlogged
def test_a_thousand_waiters_cost_no_thread_and_delay_nobody(tmp_path: Path) -> None:
    """Waiters "hold no server thread": health and small updates go on as before."""
    with (
        serving(tmp_path) as server,
        worker(server.address, 0, "") as first,
        worker(server.address, 1, "") as second,
    ):
        first.create(w=torch.zeros(2), small=torch.zeros(100))
        alone = p50_of_small_updates(second)
        # Threads of the health server come with the checks that meet.
        with ThreadPoolExecutor(4) as checks:
            list(checks.map(lambda _: health_seconds(server), range(8)))
        threads = server.thread_count()
        waiters = [waiting(first, after(1)) for _ in range(WAITERS)]
        first.heartbeat()
        assert health_seconds(server) < 0.1
        assert min(p50_of_small_updates(second) for _ in range(5)) < 2 * alone
        # gRPC's own pool grows by a thread now and then, and may keep it.
        assert server.thread_count() < threads + WAITERS // 100
        for client in (first, second):
            stage(client, [1.0, 2.0])
        for client in (first, second):
            commit(client)
        values = {read_value(waiter) for waiter in waiters}
        assert values == {(-2.0, -4.0)}


def read_value(waiter: Waiter) -> tuple[float, ...]:
    (message,) = waiter
    (chunk,) = decode_frame(message, pb.ReadHeader).chunks
    return tuple(torch.frombuffer(bytearray(chunk.data), dtype=torch.float32).tolist())
