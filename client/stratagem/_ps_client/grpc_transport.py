"""Calls by gRPC."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import grpc

from stratagem._core.waiting import abandonable, is_interruptible, uninterrupted
from stratagem._ps_client.transport import (
    Attempt,
    Call,
    Cancellable,
    Responses,
    Style,
    Transport,
    once,
)
from stratagem_proto.memory import keep_freed_memory
from stratagem_rpc.channel import ANY_SERVER, GRPC, Expected, LastingChannel
from stratagem_rpc.proving import CHALLENGE, Proving


class Handshake:
    """A handshake under way: a call for a challenge, and one that answers it.

    Args:
        channel: The channel to the server.
        call: The call that opens the session.
        token: The secret of the cluster.
    """

    def __init__(self, channel: grpc.Channel, call: Call, token: str) -> None:
        self._channel, self._call, self._token = channel, call, token
        self._deadline = time.monotonic() + call.timeout
        self._under_way: Cancellable | None = None
        self._is_over = False

    def answer(self) -> bytes:
        """Return the answer of the server, which has proved itself before it is told anything."""
        asking = self._call.handshake
        assert asking is not None
        proving = Proving(self._token, self._call.path.rpartition("/")[2])
        challenge = proving.verify_challenge(self._exchange(CHALLENGE, proving.request))
        # Who knows no run of the server meets this one, which spares another handshake.
        asking.incarnation = asking.incarnation or challenge.incarnation
        proving.prove(challenge, asking)
        (message,) = self._call.encode(None)
        return self._exchange(self._call.path, message)

    def _exchange(self, path: str, message: bytes) -> bytes:
        method: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(path)
        with uninterrupted():
            answer = method(message, timeout=max(self._deadline - time.monotonic(), 0.0))
        self._under_way = answer
        if self._is_over:
            self.cancel()
        # The status comes after the message, so the stream is read to its end.
        return b"".join(abandonable(iter(answer), answer.cancel))

    def cancel(self) -> None:
        self._is_over = True
        with uninterrupted():
            if self._under_way is not None:
                self._under_way.cancel()


class _Unsent:
    def cancel(self) -> None:
        """Is called when there is nothing under way any more, or not yet."""


class _CallUnderWay:
    """A call under way, of a thread that is not interrupted in gRPC's code."""

    def __init__(self, call: Cancellable) -> None:
        self._call = call

    def cancel(self) -> None:
        with uninterrupted():
            self._call.cancel()


class GrpcTransport(Transport):
    """Calls a server by gRPC. Connects at the first call. Thread-safe.

    Args:
        address: "host:port" of the server.
        token: The secret of the cluster, or "".
        expected: Who has to be there.
    """

    way = GRPC

    def __init__(self, address: str, token: str = "", expected: Expected = ANY_SERVER) -> None:
        self._channel, self._token = LastingChannel(address, expected), token
        self._used = False

    def send(self, call: Call) -> Attempt:
        """Begin a call; a closed transport raises ValueError here or for responses."""
        with uninterrupted():
            if call.uploads:
                return self._upload(call)
            if call.handshake is not None and self._token:
                handshake = Handshake(self._open(), call, self._token)
                return Attempt(Responses(once(handshake.answer)), handshake)
            (message,) = call.encode(None)
            if call.style is Style.AWAITED and not is_interruptible():
                # The thread is woken once, and not for each part of the answer, which matters most
                # on a busy machine.
                unary: grpc.UnaryUnaryMultiCallable[bytes, bytes]
                unary = self._open().unary_unary(call.path)
                answered = once(partial(unary, message, timeout=call.timeout))
                return Attempt(Responses(answered), _Unsent())
            # A stream of one message is a unary call on the wire, which needs no thread to feed it.
            method: grpc.UnaryStreamMultiCallable[bytes, bytes]
            method = self._open().unary_stream(call.path)
            answer = method(message, timeout=call.timeout)
            return _attempt(answer, iter(answer))

    def _upload(self, call: Call) -> Attempt:
        if call.downloads:
            both: grpc.StreamStreamMultiCallable[bytes, bytes]
            both = self._open().stream_stream(call.path)
            answered = both(call.encode(None), timeout=call.timeout)
            return _attempt(answered, iter(answered))
        method: grpc.StreamUnaryMultiCallable[bytes, bytes]
        method = self._open().stream_unary(call.path)
        if call.style is Style.AWAITED and not is_interruptible():
            # This needs one thread less.
            answer = partial(method, call.encode(None), timeout=call.timeout)
            return Attempt(Responses(once(answer)), _Unsent())
        sent = method.future(call.encode(None), timeout=call.timeout)
        return _attempt(sent, once(sent.result))

    def _open(self) -> grpc.Channel:
        if not self._used:
            # Large pulls are faster where their memory need not be cleared first.
            keep_freed_memory()
            self._used = True
        return self._channel.get()

    def close(self) -> None:
        self._channel.close()


def _attempt(call: Cancellable, messages: Iterator[bytes]) -> Attempt:
    return Attempt(Responses(abandonable(messages, call.cancel)), _CallUnderWay(call))
