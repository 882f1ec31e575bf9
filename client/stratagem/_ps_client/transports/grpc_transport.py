"""Calls by gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import grpc

from stratagem._core.waiting import abandonable, is_interruptible, uninterrupted
from stratagem._ps_client.transports.call import Attempt, Call, Cancellable, Responses, Style, once
from stratagem._ps_client.transports.handshake import Handshake
from stratagem_proto.memory import keep_freed_memory
from stratagem_proto.wire.channel import ANY_SERVER, Expected, LastingChannel


class _Unsent:
    def cancel(self) -> None:
        """Is called when there is nothing under way any more, or not yet."""


class _CallUnderWay:
    """A call under way, of a thread that is not interrupted in gRPC's code."""

    def __init__(self, call: Cancellable) -> None:
        self._call = call

    def cancel(self) -> None:
        """Give the call up, if it has not ended."""
        with uninterrupted():
            self._call.cancel()


class GrpcTransport:
    """Calls a server by gRPC. Connects at the first call. Thread-safe.

    Args:
        address: "host:port" of the server.
        token: The secret of the cluster, or "".
        expected: Who has to be there.
    """

    def __init__(self, address: str, token: str = "", expected: Expected = ANY_SERVER) -> None:
        self._channel, self._token = LastingChannel(address, expected), token
        self._used = False

    def send(self, call: Call) -> Attempt:
        """Begin a call; a closed transport raises ValueError here or for responses."""
        with uninterrupted():
            return self._send(call)

    def _send(self, call: Call) -> Attempt:
        if call.uploads:
            return self._upload(call)
        if call.handshake is not None and self._token:
            handshake = Handshake(self._open(), call, self._token)
            return Attempt(Responses(once(handshake.answer)), handshake)
        # A stream of one message is a unary call on the wire, which needs no thread to feed it.
        (message,) = call.encode(None)
        if call.style is Style.AWAITED and not is_interruptible():
            return self._exchange(call, message)
        method: grpc.UnaryStreamMultiCallable[bytes, bytes]
        method = self._open().unary_stream(call.path)
        answer = method(message, timeout=call.timeout)
        return _attempt(answer, iter(answer))

    def _exchange(self, call: Call, message: bytes) -> Attempt:
        # The thread is woken once, and not for each part of the answer, which matters most on a
        # busy machine.
        method: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        method = self._open().unary_unary(call.path)
        answer = once(partial(method, message, timeout=call.timeout))
        return Attempt(Responses(answer), _Unsent())

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
        """End all calls; none can be begun any more."""
        self._channel.close()


def _attempt(call: Cancellable, messages: Iterator[bytes]) -> Attempt:
    return Attempt(Responses(abandonable(messages, call.cancel)), _CallUnderWay(call))
