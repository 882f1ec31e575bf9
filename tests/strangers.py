"""Connections of strangers, who speak as much of HTTP/2 as gRPC wants to hear, and no more."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_HEADERS = 4

SECONDS = 60.0


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    prefix = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return prefix + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _headers(path: str) -> bytes:
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path.encode(),
        b":authority": b"anybody",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    return b"".join(_literal(name, value) for name, value in fields.items())


@contextmanager
def greeted(address: str) -> Iterator[socket.socket]:
    """A connection whose other end takes it for one of gRPC."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), SECONDS) as stranger:
        stranger.sendall(_PREFACE + _frame(_SETTINGS, 0, 0))
        yield stranger


def begin(stranger: socket.socket, number: int, path: str) -> None:
    """Begins a call, the first of which has number 0, with a message that never ends."""
    stream = 2 * number + 1
    message = b"\0" + struct.pack(">I", 1 << 20) + b"\x0a\xff"
    call = _frame(_HEADERS, _END_HEADERS, stream, _headers(path))
    stranger.sendall(call + _frame(_DATA, 0, stream, message))


def is_hung_up(stranger: socket.socket) -> bool:
    """Whether the other end has closed the connection."""
    stranger.setblocking(False)
    try:
        while stranger.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True
