"""Passes over data as a server keeps account of them, over the wire."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from stratagem_proto.v1 import draws_pb2 as pb
from stratagem_proto.v1.closure_pb2 import EndClosuresRequest, EndClosuresResponse
from stratagem_proto.v1.session_pb2 import ClosureIdentity, ClosureKey
from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient

DATA = "stratagem_proto.v1.DataService"
CLOSURES = "stratagem_proto.v1.ClosureService"
NAME, NUM_BATCHES, SEED = "ratings", 3, 7
FIRST, SECOND = os.urandom(16), os.urandom(16)


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN) as client:
        client.open()
        yield client


def opened(client: RawClient, coordinator: bytes = FIRST) -> pb.OpenPassResponse:
    request = pb.OpenPassRequest(
        key=client.key(),
        ledger=NAME,
        num_batches=NUM_BATCHES,
        seed=SEED,
        coordinator=coordinator,
    )
    return client.unary("OpenPass", request, pb.OpenPassResponse, service=DATA)


def drawn(
    client: RawClient, function: int, coordinator: bytes = FIRST, batches: int = 3, order: int = 0
) -> int | None:
    key = client.key()
    identity = ClosureIdentity(space=coordinator, number=function)
    key.closure.CopyFrom(ClosureKey(identity=identity, ordinal=1))
    request = pb.DrawBatchRequest(key=key, ledger=NAME, num_batches=batches, order=order)
    response = client.unary("DrawBatch", request, pb.DrawBatchResponse, service=DATA)
    return response.batch if response.HasField("batch") else None


def ended(client: RawClient, through: int, *unended: int) -> list[int]:
    """Says which functions have ended; returns of which that was known."""
    request = EndClosuresRequest(
        session_id=client.session_id, space=FIRST, through=through, unended=unended
    )
    response = client.unary("EndClosures", request, EndClosuresResponse, service=CLOSURES)
    return list(response.ended)


def test_batches_are_handed_out_until_there_are_none(client: RawClient) -> None:
    assert opened(client) == pb.OpenPassResponse(seed=SEED)
    assert [drawn(client, function) for function in range(1, 5)] == [0, 1, 2, None]
    assert opened(client).number == 1


def test_workers_that_read_a_pass_in_different_orders_are_refused(client: RawClient) -> None:
    opened(client)
    assert drawn(client, 1) == 0
    assert drawn(client, 2, order=5) == 1
    with pytest.raises(FailedPreconditionError, match="read pass 0 of 'ratings' in different"):
        drawn(client, 3, order=6)
    assert drawn(client, 4, order=5) == 2


def test_a_function_that_runs_again_gets_its_batch_again(
    client: RawClient, server: ParameterServer
) -> None:
    opened(client)
    assert [drawn(client, 1), drawn(client, 2)] == [0, 1]
    with RawClient(server.address, TOKEN) as other:
        other.open()
        assert [drawn(other, 2), drawn(other, 1), drawn(other, 3)] == [1, 0, 2]


def test_another_coordinator_is_told_who_has_drawn(client: RawClient) -> None:
    opened(client)
    drawn(client, 4)
    drawn(client, 2)
    left = opened(client, SECOND)
    assert (left.number, left.drawn) == (0, 2)
    (earlier,) = left.earlier
    assert earlier.space == FIRST
    assert [one.number for one in earlier.unfinished] == [2, 4]
    assert [one.batches for one in earlier.unfinished] == [1, 1]
    with pytest.raises(FailedPreconditionError, match="another coordinator"):
        drawn(client, 5)
    assert drawn(client, 1, SECOND) == 2


def test_functions_that_have_ended_are_left_to_nobody(client: RawClient) -> None:
    opened(client)
    drawn(client, 1)
    drawn(client, 2)
    assert ended(client, 1) == []
    (earlier,) = opened(client, SECOND).earlier
    assert [one.number for one in earlier.unfinished] == [2]
    assert ended(client, 2**64 - 1, 1, 2) == [1]


def test_only_functions_draw(client: RawClient) -> None:
    opened(client)
    request = pb.DrawBatchRequest(key=client.key(), ledger=NAME, num_batches=3)
    with pytest.raises(InvalidArgumentError, match="read it there"):
        client.unary("DrawBatch", request, pb.DrawBatchResponse, service=DATA)


def test_what_was_not_opened_is_not_there(client: RawClient) -> None:
    with pytest.raises(NotFoundError, match="no dataset 'ratings'"):
        drawn(client, 1)


def test_workers_with_other_data_are_refused(client: RawClient) -> None:
    opened(client)
    with pytest.raises(FailedPreconditionError, match="4 batches here, but had 3"):
        drawn(client, 1, batches=4)
