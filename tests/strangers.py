"""Connections of strangers, who speak as much of HTTP/2 as gRPC wants to hear, and no more."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from h2.connection import H2Connection
from h2.exceptions import StreamClosedError

SECONDS = 60.0


class Stranger:
    """A connection whose other end takes it for one of gRPC."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), SECONDS)
        self._spoken = H2Connection()
        self._spoken.initiate_connection()
        self._flush()

    def begin(self, path: str, nbytes: int = 1 << 20) -> int:
        """Begins a call with a message of so many bytes, which never ends; returns its number."""
        stream = self._spoken.get_next_available_stream_id()
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "anybody",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        self._spoken.send_headers(stream, fields.items())
        self._spoken.send_data(stream, b"\0" + struct.pack(">I", nbytes) + b"\x0a\xff")
        self._flush()
        return stream

    def send(self, stream: int, nbytes: int) -> None:
        """Sends so many bytes of the message of a call, or fewer if the call has ended."""
        with suppress(StreamClosedError):
            while nbytes:
                room = self._spoken.local_flow_control_window(stream)
                sent = min(nbytes, room, self._spoken.max_outbound_frame_size)
                self._spoken.send_data(stream, bytes(sent))
                self._flush()
                nbytes -= sent
                if not sent:
                    self._listen()

    def _listen(self) -> None:
        self._spoken.receive_data(self._socket.recv(1 << 16))
        self._flush()

    def _flush(self) -> None:
        self._socket.sendall(self._spoken.data_to_send())

    def is_hung_up(self) -> bool:
        """Whether the other end has closed the connection."""
        self._socket.setblocking(False)
        try:
            while self._socket.recv(1 << 16):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()


@contextmanager
def greeted(address: str) -> Iterator[Stranger]:
    """A stranger until the end of the block."""
    stranger = Stranger(address)
    try:
        yield stranger
    finally:
        stranger.close()
