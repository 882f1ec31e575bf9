"""The challenges of a server, by a clock of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stratagem_proto.errors import (
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem_proto.proofs import proof_of_client
from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1.handshake_pb2 import ChallengeRequest
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    FilteredTask,
    FilteredTasks,
    OpenSessionRequest,
    Task,
)
from stratagem_rpc.serving import handshake
from stratagem_rpc.serving.callers import enter_call
from stratagem_rpc.serving.entrance import GrpcCall
from stratagem_rpc.serving.handshake import Handshakes
from stratagem_rpc.serving.settings import ServingSettings
from tests.conftest import TOKEN

SETTINGS = ServingSettings(job="ps", token=TOKEN)
ASKED = ChallengeRequest(protocol_version=PROTOCOL_VERSION, nonce=bytes(32))


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def answered(made: bytes, token: str = TOKEN) -> OpenSessionRequest:
    request = OpenSessionRequest(protocol_version=PROTOCOL_VERSION)
    request.proof.nonce, request.proof.challenge = ASKED.nonce, made
    request.proof.mac = proof_of_client(token, "OpenSession", request)
    return request


def check(handshakes: Handshakes, request: OpenSessionRequest) -> None:
    asyncio.run(handshakes.check(request, "OpenSession"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def handshakes(clock: Clock) -> Iterator[Handshakes]:
    yield Handshakes(SETTINGS, clock)


def test_a_proof_is_taken_for_half_a_minute(clock: Clock, handshakes: Handshakes) -> None:
    made = [handshakes.challenge(ASKED, b"").challenge for _ in range(2)]
    clock.now += 30.0
    check(handshakes, answered(made[0]))
    clock.now += 0.1
    with pytest.raises(UnavailableError, match="not made in the last 30 s"):
        check(handshakes, answered(made[1]))


def test_no_proof_is_taken_twice_while_its_challenge_is_young(
    clock: Clock, handshakes: Handshakes
) -> None:
    first = answered(handshakes.challenge(ASKED, b"").challenge)
    check(handshakes, first)
    for _ in range(3):
        clock.now += 10.0
        check(handshakes, answered(handshakes.challenge(ASKED, b"").challenge))
        with pytest.raises(UnauthenticatedError, match="a second time"):
            check(handshakes, first)


def test_only_right_proofs_take_memory_and_not_for_ever(
    clock: Clock, handshakes: Handshakes
) -> None:
    for _ in range(100):
        guess = answered(handshakes.challenge(ASKED, b"").challenge, "a guess by somebody")
        with pytest.raises(UnauthenticatedError, match="a wrong proof"):
            check(handshakes, guess)
    assert not handshakes._taken
    for _ in range(100):
        check(handshakes, answered(handshakes.challenge(ASKED, b"").challenge))
        clock.now += 1.0
    assert len(handshakes._taken) <= 31


def test_there_is_a_limit_of_handshakes(
    clock: Clock, handshakes: Handshakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_MOST_TAKEN", 3)
    for _ in range(3):
        check(handshakes, answered(handshakes.challenge(ASKED, b"").challenge))
    with pytest.raises(ResourceExhaustedError, match="come again later") as caught:
        check(handshakes, answered(handshakes.challenge(ASKED, b"").challenge))
    assert caught.value.retry_seconds > 0
    clock.now += 31.0
    check(handshakes, answered(handshakes.challenge(ASKED, b"").challenge))


class Call:
    """A call from an address."""

    def __init__(self, address: str) -> None:
        self._peer = f"ipv4:{address}:2222"

    def peer(self) -> str:
        return self._peer


def test_all_proofs_wait_from_where_wrong_ones_came(clock: Clock) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        clock.now += seconds

    handshakes = Handshakes(SETTINGS, clock, sleep=sleep)

    async def proved_from(address: str, token: str = TOKEN) -> None:
        enter_call(GrpcCall(Call(address)))
        made = handshakes.challenge(ASKED, b"").challenge
        await handshakes.check(answered(made, token), "OpenSession")

    for _ in range(8):
        with pytest.raises(UnauthenticatedError, match="a wrong proof"):
            asyncio.run(proved_from("10.0.0.1", "a guess by somebody"))
    assert waited == [0.1, 0.2, 0.4, 0.8, 1.6]
    asyncio.run(proved_from("10.0.0.2"))
    assert len(waited) == 5
    asyncio.run(proved_from("10.0.0.1"))
    assert waited[5:] == [2.0]


def test_what_a_server_proves_is_no_proof_of_a_client(handshakes: Handshakes) -> None:
    answer = handshakes.challenge(ASKED, b"")
    request = answered(answer.challenge)
    request.proof.mac = answer.proof
    with pytest.raises(UnauthenticatedError, match="a wrong proof"):
        check(handshakes, request)


@pytest.mark.parametrize(
    "told",
    [
        OpenSessionRequest(session_id=b"another"),
        OpenSessionRequest(role=ROLE_CHIEF),
        OpenSessionRequest(task=Task(index=1)),
        OpenSessionRequest(client=b"another"),
        OpenSessionRequest(incarnation=b"another"),
        OpenSessionRequest(program=b"another"),
        OpenSessionRequest(process=b"another"),
        OpenSessionRequest(filtered=FilteredTasks(tasks=[FilteredTask(task=Task(index=1))])),
        OpenSessionRequest(ps_tasks=1),
    ],
    ids=lambda told: told.ListFields()[0][0].name,
)
def test_a_proof_is_of_all_that_is_asked_with(
    told: OpenSessionRequest, handshakes: Handshakes
) -> None:
    request = answered(handshakes.challenge(ASKED, b"").challenge)
    request.MergeFrom(told)
    with pytest.raises(UnauthenticatedError, match="wrong proof"):
        check(handshakes, request)
