"""Asking servers that need not have a session of whoever asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from stratagem_proto.errors import CancelledError, UnavailableError
from stratagem_proto.protocol import spoken
from stratagem_proto.v1 import status_pb2 as pb
from stratagem_proto.v1.session_pb2 import ROLE_OBSERVER, OpenSessionRequest
from stratagem_proto.wire.status import CallError
from stratagem_rpc.proving import CHALLENGE, Proving

Response = TypeVar("Response", bound=Message)


def observer_handshake() -> OpenSessionRequest:
    """Return who asks for a status; the proof is still to come."""
    return OpenSessionRequest(role=ROLE_OBSERVER, **spoken())


@dataclass(frozen=True)
class Question(Generic[Response]):
    """What to ask a server.

    Attributes:
        path: The RPC, as gRPC calls it.
        request: The request, with who asks as `observer_handshake`. Each server gets a copy with
            its own proof.
        response_type: The class of the answer.
    """

    path: str
    request: Any
    response_type: type[Response]

    @property
    def method(self) -> str:
        """The name of the RPC without its service."""
        return self.path.rpartition("/")[2]


class Answer(Future[Response]):
    """The answer to come of a server; fails with `grpc.RpcError`, also where it is cancelled.

    It is asked with two calls if there is a token: one for a challenge, and the one that is meant.

    Args:
        channel: A channel to the server.
        question: What to ask.
        token: The secret of the cluster, or "".
        seconds: The longest wait.
        wait_for_ready: Whether to wait for a server that cannot be reached yet.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        question: Question[Response],
        token: str,
        seconds: float,
        wait_for_ready: bool = False,
    ) -> None:
        super().__init__()
        self._channel, self._question = channel, question
        self._deadline, self._waits = time.monotonic() + seconds, wait_for_ready
        self._request = type(question.request)()
        self._request.CopyFrom(question.request)
        if token:
            proving = Proving(token, question.method)
            self._begin(CHALLENGE, proving.request, partial(self._proved, proving))
        else:
            self._ask()

    def _begin(self, path: str, message: bytes, then: Callable[[bytes], None]) -> None:
        method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(path)
        left = max(self._deadline - time.monotonic(), 0.0)
        # Before it can be answered, which begins the next one in another thread.
        self._call = method.future(message, timeout=left, wait_for_ready=self._waits)
        self._call.add_done_callback(partial(self._pass_on, then))

    def _proved(self, proving: Proving, answer: bytes) -> None:
        proving.prove(proving.verify_challenge(answer), self._request.asking)
        self._ask()

    def _ask(self) -> None:
        message = self._request.SerializeToString()
        self._begin(self._question.path, message, self._answered)
        if self.done():
            self._call.cancel()

    def _answered(self, data: bytes) -> None:
        response = self._question.response_type.FromString(data)
        with suppress(InvalidStateError):
            self.set_result(response)

    def _pass_on(self, then: Callable[[bytes], None], call: grpc.Future[bytes]) -> None:
        # In a thread of gRPC, where nobody hears of errors.
        try:
            then(call.result())
        except grpc.RpcError as error:
            self._fail(error)
        except grpc.FutureCancelledError:
            self._fail(CallError.from_error(CancelledError("the call was given up")))
        except Exception as error:
            # For instance because the channel is closed by now.
            self._fail(
                CallError.from_error(UnavailableError(f"the server cannot be asked: {error}"))
            )

    def _fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.set_exception(error)

    def cancel(self) -> bool:
        """Give it up; return whether it had not ended."""
        had_ended = self.done()
        self._fail(CallError.from_error(CancelledError("the call was given up")))
        self._call.cancel()
        return not had_ended


SERVICE = pb.DESCRIPTOR.services_by_name["StatusService"].full_name


def begin_status(
    channel: grpc.Channel,
    token: str,
    timeout: float,
    with_variables: bool = False,
    wait_for_ready: bool = False,
) -> Answer[pb.GetStatusResponse]:
    """Begin to ask a server of any kind for its status; it needs no session.

    Args:
        channel: A channel to the data plane of the server.
        token: The secret of the cluster, or "".
        timeout: The longest wait, in seconds.
        with_variables: Whether a parameter server is to list its variables.
        wait_for_ready: Whether to wait for a server that cannot be reached yet.
    """
    request = pb.GetStatusRequest(asking=observer_handshake(), with_variables=with_variables)
    question = Question(f"/{SERVICE}/GetStatus", request, pb.GetStatusResponse)
    return Answer(channel, question, token, timeout, wait_for_ready)
