"""Handshakes with real servers: what proves the cluster's token, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import pytest

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.session import Identity, handshake
from stratagem_proto.errors import (
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem_proto.protocol import PROTOCOL_VERSION, spoken
from stratagem_proto.v1.handshake_pb2 import ChallengeRequest, ChallengeResponse
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_WORKER,
    OpenSessionRequest,
    OpenSessionResponse,
)
from stratagem_proto.v1.status_pb2 import GetStatusRequest, GetStatusResponse
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.asking import SERVICE as STATUS
from stratagem_rpc.asking import observer_handshake
from stratagem_rpc.channel import Deadlines
from stratagem_rpc.proving import Proving
from tests.conftest import TOKEN
from tests.impostors import Impostor
from tests.psserver.wire import RawClient

WORKER = Identity(ROLE_WORKER, "worker", 0, TOKEN)
_SERVICE = "stratagem_proto.v1.HandshakeService"


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN) as opened:
        yield opened


def proved(client: RawClient, run: bytes = b"") -> OpenSessionRequest:
    """A handshake with a proof that the server has not seen yet."""
    request = handshake(WORKER, client.session_id[:16])
    request.incarnation = run
    client.prove("OpenSession", request)
    return request


def opened(client: RawClient, request: OpenSessionRequest) -> OpenSessionResponse:
    return client.unary("OpenSession", request, OpenSessionResponse)


def challenge(client: RawClient, nonce: bytes = bytes(32)) -> ChallengeResponse:
    request = ChallengeRequest(protocol_version=PROTOCOL_VERSION, nonce=nonce)
    return client.unary("Challenge", request, ChallengeResponse, service=_SERVICE)


def test_a_recorded_handshake_opens_nothing_a_second_time(client: RawClient) -> None:
    recorded = proved(client)
    opened(client, recorded)
    with pytest.raises(UnauthenticatedError, match="was shown a proof a second time"):
        opened(client, recorded)
    opened(client, proved(client))


def test_a_recorded_handshake_opens_nothing_after_a_restart(client: RawClient) -> None:
    recorded = proved(client)
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as restarted,
        RawClient(restarted.address, TOKEN) as later,
        pytest.raises(UnavailableError, match="this process has not made in the last 30 s"),
    ):
        opened(later, recorded)


CHANGES: dict[str, Callable[[OpenSessionRequest], None]] = {
    "session": lambda request: setattr(request, "session_id", bytes(16)),
    "role": lambda request: setattr(request, "role", ROLE_CHIEF),
    "job": lambda request: setattr(request.task, "job", "chief"),
    "index": lambda request: setattr(request.task, "index", 1),
    "client": lambda request: setattr(request, "client", bytes(16)),
    "program": lambda request: setattr(request, "program", bytes(16)),
    "run": lambda request: setattr(request, "incarnation", bytes(16)),
    "nonce": lambda request: setattr(request.proof, "nonce", bytes(32)),
    "mac": lambda request: setattr(request.proof, "mac", bytes(32)),
    "no mac": lambda request: setattr(request.proof, "mac", b""),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_proof_is_for_one_handshake_alone(
    client: RawClient, change: Callable[[OpenSessionRequest], None]
) -> None:
    request = proved(client)
    change(request)
    with pytest.raises(UnauthenticatedError, match="a wrong proof of the cluster token"):
        opened(client, request)


def test_a_proof_is_for_one_rpc_alone(client: RawClient) -> None:
    request = GetStatusRequest(asking=observer_handshake())
    client.prove("SetDraining", request.asking)
    with pytest.raises(UnauthenticatedError, match="a wrong proof"):
        client.unary("GetStatus", request, GetStatusResponse, service=STATUS)


def test_a_challenge_that_somebody_else_has_made_is_none(client: RawClient) -> None:
    own = challenge(client).challenge
    for made in (b"", bytes(8), own[:-1] + bytes([own[-1] ^ 1])):
        request = proved(client)
        request.proof.challenge = made
        with pytest.raises(UnavailableError, match="ask for another one"):
            opened(client, request)


def test_a_client_is_let_in_although_others_of_its_address_guess(client: RawClient) -> None:
    for _ in range(5):
        guess = proved(client)
        guess.proof.mac = bytes(32)
        with pytest.raises(UnauthenticatedError, match="a wrong proof"):
            opened(client, guess)
    client.open()


def test_a_nonce_has_a_size(client: RawClient) -> None:
    with pytest.raises(InvalidArgumentError, match="a nonce of 8 bytes, not 32"):
        challenge(client, nonce=bytes(8))


def test_who_has_no_token_is_told_what_to_do(server: ParameterServer) -> None:
    with (
        RawClient(server.address, "") as stranger,
        pytest.raises(UnauthenticatedError, match=r"/job:ps/task:0 was shown no proof.*token="),
    ):
        stranger.open()


@pytest.mark.parametrize(
    ("proof", "says"),
    [(b"", "no cluster token, unlike this program"), (bytes(32), "another cluster token than")],
)
def test_a_server_that_does_not_know_the_token_learns_nothing(proof: bytes, says: str) -> None:
    impostor = Impostor(proof)
    with impostor.listening():
        connection = Connection(0, impostor.address, WORKER, Deadlines(connect=5.0))
        with pytest.raises(UnauthenticatedError, match=f"/job:ps/task:0 has {says}") as caught:
            connection.open()
        connection.close()
    ((method, told),) = impostor.received
    assert method == f"/{_SERVICE}/Challenge"
    sent = ChallengeRequest.FromString(told)
    assert sent == ChallengeRequest(nonce=sent.nonce, **spoken())
    assert TOKEN not in str(caught.value)


def test_an_answer_that_is_no_challenge_is_no_server() -> None:
    proving = Proving(TOKEN, "OpenSession")
    with pytest.raises(grpc.RpcError, match="no server of Stratagem; correct the address"):
        proving.verify_challenge(b"\xff")


def test_a_program_with_a_token_is_no_client_of_a_server_without(client: RawClient) -> None:
    with ParameterServer(ServerSettings()) as server:
        connection = Connection(0, server.address, WORKER, Deadlines(connect=5.0))
        with pytest.raises(UnauthenticatedError, match="has no cluster token, unlike this"):
            connection.open()
        connection.close()
        with (
            RawClient(server.address, "") as late,
            pytest.raises(UnauthenticatedError, match="started without a cluster token"),
        ):
            opened(late, proved(client))


def test_one_handshake_is_enough_where_the_challenge_names_the_run(client: RawClient) -> None:
    run = challenge(client).incarnation
    assert opened(client, proved(client, run)).incarnation == run
    client.heartbeat()
