"""A channel that is used for as long as certificates may change."""

from __future__ import annotations

import threading
import time

import grpc

from stratagem_proto.certificates.presented import presented
from stratagem_proto.wire.channel import ANY_SERVER, CHANNEL_OPTIONS, Expected, open_channel

# Calls on the channel of former certificates have ended by then.
_RETIREMENT_SECONDS = 600.0


class LastingChannel:
    """Channels to one server, each with the certificates of its time. Thread-safe.

    A channel of gRPC keeps its certificate for all handshakes to come, after it has expired, too.
    """

    def __init__(self, address: str, expected: Expected = ANY_SERVER) -> None:
        """Open nothing yet.

        Args:
            address: The "host:port" of the server.
            expected: Who has to be there.
        """
        self._address, self._expected = address, expected
        self._channel: grpc.Channel | None = None
        self._shown: object = None
        self._retired: list[tuple[float, grpc.Channel]] = []
        self._closed = False
        self._changing = threading.Lock()

    def get(self) -> grpc.Channel:
        """Return the channel for calls that begin now.

        Raises:
            ValueError: It is closed.
        """
        channel = self._channel
        if channel is not None and (self._shown is None or self._shown is _certificates()):
            return channel
        return self._renewed()

    def _renewed(self) -> grpc.Channel:
        with self._changing:
            if self._closed:
                raise ValueError("the channel is closed")
            certificates = _certificates()
            if self._channel is None or self._shown is not certificates:
                self._retire(time.monotonic())
                self._shown = certificates
                self._channel = open_channel(self._address, CHANNEL_OPTIONS, self._expected)
            return self._channel

    def _retire(self, now: float) -> None:
        """Keep the channel for the calls on it; close those whose calls have ended long ago."""
        if self._channel is not None:
            self._retired.append((now, self._channel))
        while self._retired and self._retired[0][0] < now - _RETIREMENT_SECONDS:
            self._retired.pop(0)[1].close()

    def close(self) -> None:
        """End all calls; none can be begun any more."""
        with self._changing:
            self._closed = True
            for _, channel in self._retired:
                channel.close()
            if self._channel is not None:
                self._channel.close()


def _certificates() -> object:
    folder = presented()
    return folder.current() if folder is not None else None
