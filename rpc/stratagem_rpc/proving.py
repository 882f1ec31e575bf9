"""The caller's side of a handshake, in which both ends prove that they know the cluster's secret.

It takes two calls: one for a challenge, whose answer proves that the server knows the secret, and
the one that is meant, with the caller's own proof. Nothing that is worth anything is sent to a
server that has not proved itself.
"""

from __future__ import annotations

import hmac

import grpc
from google.protobuf.message import DecodeError

from stratagem_proto.errors import StratagemError, UnauthenticatedError
from stratagem_proto.proofs import new_nonce, proof_of_client, proof_of_server
from stratagem_proto.protocol import spoken
from stratagem_proto.v1.handshake_pb2 import DESCRIPTOR, ChallengeRequest, ChallengeResponse
from stratagem_proto.v1.session_pb2 import OpenSessionRequest
from stratagem_proto.wire.status import CallError

_SERVICE = DESCRIPTOR.services_by_name["HandshakeService"].full_name
CHALLENGE = f"/{_SERVICE}/Challenge"


class Proving:
    """One handshake of a caller, without a connection.

    Args:
        token: The secret of the cluster.
        method: The name of the RPC that is meant, without its service.

    Attributes:
        request: The encoded request for a challenge.
    """

    def __init__(self, token: str, method: str) -> None:
        self._token, self._method, self._nonce = token, method, new_nonce()
        request = ChallengeRequest(nonce=self._nonce, **spoken())
        self.request = request.SerializeToString()

    def verify_challenge(self, answer: bytes) -> ChallengeResponse:
        """Return the challenge of an encoded answer.

        Raises:
            CallError: The server has not proved itself.
        """
        try:
            challenge = ChallengeResponse.FromString(answer)
        except DecodeError as error:
            raise CallError.from_error(_not_a_server()) from error
        expected = proof_of_server(self._token, self._nonce, challenge)
        if not hmac.compare_digest(challenge.proof, expected):
            raise CallError.from_error(_unproven_server(challenge))
        return challenge

    def prove(self, challenge: ChallengeResponse, asking: OpenSessionRequest) -> None:
        """Write the proof into what is asked with, and must not change any more."""
        asking.proof.nonce, asking.proof.challenge = self._nonce, challenge.challenge
        asking.proof.mac = proof_of_client(self._token, self._method, asking)


def _not_a_server() -> StratagemError:
    return UnauthenticatedError(
        "what answers is no server of Stratagem; correct the address, or end the program that has "
        "the port"
    )


def _unproven_server(challenge: ChallengeResponse) -> StratagemError:
    label = f"/job:{challenge.task.job}/task:{challenge.task.index}"
    has = "another cluster token than" if challenge.proof else "no cluster token, unlike"
    return UnauthenticatedError(
        f"{label} has {has} this program, which has sent it nothing; give client and server the "
        "same file, by STRATAGEM_TOKEN_FILE or --token-file, or the same token=",
        task=label,
    )


async def prove(
    channel: grpc.aio.Channel, token: str, method: str, asking: OpenSessionRequest, seconds: float
) -> None:
    """Prove that this process knows the secret, in what it is about to ask with.

    Args:
        channel: A channel to the server.
        token: The secret; with "" nothing is proved.
        method: The name of the RPC that is meant, without its service.
        asking: What is asked with.
        seconds: The longest wait.

    Raises:
        grpc.RpcError: The server does not answer in time, or has not proved itself.
    """
    if token:
        proving = Proving(token, method)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHALLENGE)
        answer = await call(proving.request, timeout=seconds)
        proving.prove(proving.verify_challenge(answer), asking)
