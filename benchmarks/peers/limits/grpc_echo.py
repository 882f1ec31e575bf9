"""gRPC with nothing behind it: `... benchmarks.peers.limits.grpc_echo FD unary`.

With `stream` one stream stands, in which what is large goes in chunks of a MiB.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection

import grpc

from benchmarks.peers.process import Answer, serve
from benchmarks.peers.server import server
from benchmarks.peers.transfer import Transfer, Transfers

_CHUNK_BYTES = 1 << 20
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_UNARY, _STREAM = "/benchmarks.Echo/Unary", "/benchmarks.Echo/Stream"
_SIZE_BYTES = 8


class Unary:
    """One message in each direction; as `Transfer`."""

    def __init__(self, channel: grpc.Channel, nbytes: int) -> None:
        self._call = _unary_call(channel)
        self._push = _size(0) + bytes(nbytes)
        self._pull = _size(nbytes)

    def push(self) -> None:
        """Sends the bytes; what comes back is empty."""
        self._call(self._push)

    def pull(self) -> None:
        """Receives the bytes."""
        self._call(self._pull)

    def close(self) -> None:
        """Leaves the buffers to the next one."""


class Stream:
    """Messages in one standing stream; as `Transfer`."""

    def __init__(self, channel: grpc.Channel, nbytes: int) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stream: Callable[[Iterator[bytes]], Iterator[bytes]]
        stream = channel.stream_stream(_STREAM, bytes, bytes)
        self._answers = stream(iter(self._requests.get, None))
        self._chunks = _chunks(nbytes)

    def push(self) -> None:
        """Sends the bytes and waits for an empty message."""
        self._requests.put(_size(len(self._chunks)) + _size(0))
        for chunk in self._chunks:
            self._requests.put(chunk)
        next(self._answers)

    def pull(self) -> None:
        """Receives the bytes."""
        self._requests.put(_size(0) + _size(sum(map(len, self._chunks))))
        for _ in self._chunks:
            next(self._answers)

    def close(self) -> None:
        """Ends the stream."""
        self._requests.put(None)


def exchange(channel: grpc.Channel, sent: int, received: int) -> Callable[[], bytes]:
    """What sends so many bytes in one message, and gets so many in another."""
    return partial(_unary_call(channel), _size(received) + bytes(sent))


def _unary_call(channel: grpc.Channel) -> Callable[[bytes], bytes]:
    call: Callable[[bytes], bytes] = channel.unary_unary(_UNARY, bytes, bytes)
    return call


def open_channel(address: str) -> grpc.Channel:
    """A channel to what `run` serves."""
    return grpc.insecure_channel(address, options=_OPTIONS)


def run(parent: Connection) -> None:
    """Serves, in a process of its own; see `server`."""
    echo = grpc.server(ThreadPoolExecutor(2), options=_OPTIONS)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
    }
    echo.add_registered_method_handlers("benchmarks.Echo", handlers)
    port = echo.add_insecure_port("127.0.0.1:0")
    echo.start()
    parent.send(f"127.0.0.1:{port}")
    echo.wait_for_termination()


def _unary(request: bytes, context: grpc.ServicerContext) -> bytes:
    return bytes(_number(request[:_SIZE_BYTES]))


def _stream(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    for request in requests:
        for _ in range(_number(request[:_SIZE_BYTES])):
            next(requests)
        yield from _chunks(_number(request[_SIZE_BYTES:])) or [b""]


def _chunks(nbytes: int) -> list[bytes]:
    starts = range(0, nbytes, _CHUNK_BYTES)
    return [bytes(min(_CHUNK_BYTES, nbytes - start)) for start in starts]


def _size(nbytes: int) -> bytes:
    return nbytes.to_bytes(_SIZE_BYTES, "little")


def _number(size: bytes) -> int:
    return int.from_bytes(size, "little")


_KINDS: dict[str, Callable[[grpc.Channel, int], Transfer]] = {"unary": Unary, "stream": Stream}


@contextmanager
def contestant(kind: str) -> Iterator[Answer]:
    """What is connected to a server of its own."""
    with server(run) as address, open_channel(address) as channel:
        yield Transfers(partial(_KINDS[kind], channel))


if __name__ == "__main__":
    serve(contestant)
