"""Clients that make coordinators without end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stratagem_proto.errors import FailedPreconditionError, ResourceExhaustedError
from stratagem_proto.v1.closure_pb2 import EndClosuresRequest, EndClosuresResponse
from stratagem_proto.v1.session_pb2 import (
    CloseSessionRequest,
    CloseSessionResponse,
    ClosureIdentity,
    ClosureKey,
    Task,
)
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_ADD,
    AssignHeader,
    Assignment,
    AssignResponse,
)
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.checkpoints import facts_of
from stratagem_psserver.exactly_once import closures
from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient, encoded

SERVICE = "stratagem_proto.v1.ClosureService"
ONE = torch.ones(3)


def space(number: int) -> bytes:
    return b"%016d" % number


def end(client: RawClient, number: int) -> None:
    request = EndClosuresRequest(session_id=client.session_id, space=space(number), through=7)
    client.unary("EndClosures", request, EndClosuresResponse, service=SERVICE)


def add(client: RawClient, number: int) -> None:
    """What the first function of a coordinator changes."""
    key = client.key()
    identity = ClosureIdentity(space=space(number), number=8)
    key.closure.CopyFrom(ClosureKey(identity=identity, ordinal=1))
    item = Assignment(variable="w", mode=ASSIGN_MODE_ADD, value=0)
    header = AssignHeader(key=key, assignments=[item], tensors=[spec_of(ONE)])
    try:
        client.upload("Assign", encoded(header, [ONE]), AssignResponse)
    except ResourceExhaustedError:
        # Its failure is passing, so that the number is still to come.
        client.sequence -= 1
        raise


def until_refused(make: Callable[[RawClient, int], None], client: RawClient) -> str:
    for number in range(2_000):
        try:
            make(client, number)
        except ResourceExhaustedError as error:
            return str(error)
    pytest.fail("it was never refused")


def known(server: ParameterServer) -> dict[str, Any]:
    facts = facts_of(server._state)
    return {name: facts[name] for name in ("closures", "data", "optimizers")}


@pytest.mark.full("limits of places are held by the ledger's own tests")
@pytest.mark.parametrize(
    "make", [pytest.param(end, marks=pytest.mark.full("to add makes coordinators, too")), add]
)
def test_who_makes_coordinators_without_end_leaves_places_and_changes_nothing(
    server: ParameterServer, make: Callable[[RawClient, int], None]
) -> None:
    with (
        RawClient(server.address, TOKEN, Task(job="worker", index=1)) as greedy,
        RawClient(server.address, TOKEN) as other,
    ):
        greedy.open()
        other.open()
        other.create(w=torch.zeros(3))
        told = until_refused(make, greedy)
        assert "/job:worker/task:1 has 768 coordinators" in told
        assert "three quarters of what others leave of 1024" in told
        before = known(server), other.everything()
        for number in range(3_000, 3_010):
            with pytest.raises(ResourceExhaustedError):
                make(greedy, number)
        assert (known(server), other.everything()) == before
        for number in range(5_000, 5_100):
            make(other, number)


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 64 coordinators, for as long as the server of a test lasts."""
    monkeypatch.setattr(closures, "MAX_COORDINATORS", 64)


def test_places_of_programs_that_have_left_are_given_to_others(
    few_places: None, server: ParameterServer
) -> None:
    with RawClient(server.address, TOKEN) as other:
        other.open()
        other.create(w=torch.zeros(3))
        for first in (0, 40):
            with RawClient(server.address, TOKEN, Task(job="worker", index=1)) as gone:
                gone.open()
                for number in range(first, first + 40):
                    add(gone, number)
                closing = CloseSessionRequest(session_id=gone.session_id)
                gone.unary("CloseSession", closing, CloseSessionResponse)
        assert len([one for _, one in server._state.closures.coordinators() if one.unended]) == 64
        before = other.everything()
        # It was applied, and would be applied a second time.
        with pytest.raises(FailedPreconditionError, match="is over, like all of that coordinator"):
            add(other, 0)
        # This one is known still.
        add(other, 79)
        assert other.everything() == before
