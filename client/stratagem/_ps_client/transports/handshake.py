"""The handshake by which a session is opened."""

from __future__ import annotations

import time

import grpc

from stratagem._core.waiting import abandonable, uninterrupted
from stratagem._ps_client.transports.call import Call, Cancellable
from stratagem_proto.wire.proving import CHALLENGE, Proving


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
        challenge = proving.challenged(self._asked(CHALLENGE, proving.request))
        # Who knows no run of the server meets this one, which spares another handshake.
        asking.incarnation = asking.incarnation or challenge.incarnation
        proving.prove(challenge, asking)
        (message,) = self._call.encode(None)
        return self._asked(self._call.path, message)

    def _asked(self, path: str, message: bytes) -> bytes:
        method: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(path)
        with uninterrupted():
            answer = method(message, timeout=max(self._deadline - time.monotonic(), 0.0))
        self._under_way = answer
        if self._is_over:
            self.cancel()
        # The status comes after the message, so the stream is read to its end.
        return b"".join(abandonable(iter(answer), answer.cancel))

    def cancel(self) -> None:
        """Give the handshake up, if it has not ended."""
        self._is_over = True
        with uninterrupted():
            if self._under_way is not None:
                self._under_way.cancel()
