"""Calls over sockets of this host, and when they go by gRPC instead."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import resource
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from stratagem._servers.transports import socket_transport
from stratagem._servers.transports.call import Attempt, Call
from stratagem._servers.transports.places import Place, TcpPlace, places
from stratagem._servers.transports.server_transport import ServerTransport
from stratagem._servers.transports.socket_link import SocketLink
from stratagem._servers.transports.socket_transport import SocketTransport
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.serving.border import Context
from stratagem_proto.serving.loop import LoopThread
from stratagem_proto.serving.sockets.listener import SocketListener
from stratagem_proto.serving.sockets.listening import listen
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.wire.sockets.frames import Kind, prefix
from stratagem_proto.wire.sockets.proofs import HELLO_BYTES, NONCE_BYTES
from stratagem_proto.wire.transport import GRPC, TCP, UNIX
from tests.waiting import eventually

MEBIBYTE = bytes(1 << 20)
GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    prefix(Kind.CALL, 0, True, b"/echo.Echo/Echo"),
    prefix(Kind.HELLO, 32, True) + bytes(32),
    prefix(Kind.HELLO, 2**31, True),
]


class Echo:
    """A service with a method of each shape."""

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self.released: asyncio.Future[None] | None = None
        self.cancelled = threading.Event()

    async def echo(self, message: bytes, context: Context) -> bytes:
        return bytes(message)

    async def size(self, messages: AsyncIterator[bytes], context: Context) -> bytes:
        return b"%d" % sum([len(message) async for message in messages])

    async def refuse(self, messages: AsyncIterator[bytes], context: Context) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")

    async def fail(self, message: bytes, context: Context) -> bytes:
        raise ZeroDivisionError("a secret of the server")

    async def repeat(self, message: bytes, context: Context) -> AsyncIterator[bytes]:
        for _ in range(int(message)):
            yield MEBIBYTE

    async def tell(self, message: bytes, context: Context) -> None:
        for number in range(int(message)):
            await context.write(b"%d" % number)

    async def begin(self, message: bytes, context: Context) -> AsyncIterator[bytes]:
        self.released = asyncio.get_running_loop().create_future()
        yield b"begun"
        await self.released
        yield b"ended"

    async def give_up(self, message: bytes, context: Context) -> AsyncIterator[bytes]:
        yield b"begun"
        await context.abort(grpc.StatusCode.ABORTED, "no more")

    async def wait(self, message: bytes, context: Context) -> bytes:
        self.released = asyncio.get_running_loop().create_future()
        self.waiting.set()
        try:
            await self.released
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b"released"

    def service(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "echo.Echo",
            {
                "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
                "Fail": grpc.unary_unary_rpc_method_handler(self.fail),
                "Wait": grpc.unary_unary_rpc_method_handler(self.wait),
                "Size": grpc.stream_unary_rpc_method_handler(self.size),
                "Refuse": grpc.stream_unary_rpc_method_handler(self.refuse),
                "Repeat": grpc.unary_stream_rpc_method_handler(self.repeat),
                "Tell": grpc.unary_stream_rpc_method_handler(self.tell),
                "Begin": grpc.unary_stream_rpc_method_handler(self.begin),
                "GiveUp": grpc.unary_stream_rpc_method_handler(self.give_up),
            },
        )


class Served:
    """The service on a socket, and a transport to it."""

    def __init__(self, loop: LoopThread, way: str) -> None:
        self.loop, self.echo = loop, Echo()
        self.listener = loop.run(self._listener(way))
        self.told = self.listener.told
        (self.place,) = places(self.told, "127.0.0.1:1", way)
        self.transport = SocketTransport(self.place)
        self.stopped = False

    async def _listener(self, way: str) -> SocketListener:
        free = SimpleNamespace(release=lambda: None)
        listening = listen("127.0.0.1:1", way)
        return SocketListener([self.echo.service()], listening, lambda _: free)

    def send(
        self, method: str, *messages: bytes, timeout: float = 20.0, room: int = 0
    ) -> Attempt:
        path = f"/echo.Echo/{method}"
        return self.transport.send(
            Call(path, lambda _: iter(messages), timeout, room=room)
        )

    def call(self, method: str, *messages: bytes, timeout: float = 20.0) -> list[bytes]:
        return list(self.send(method, *messages, timeout=timeout).responses)

    def refused(self, method: str, *messages: bytes) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as caught:
            self.call(method, *messages, timeout=0.2)
        code: grpc.StatusCode = caught.value.code()
        return code

    def release(self) -> None:
        released = self.echo.released
        assert released is not None
        released.get_loop().call_soon_threadsafe(released.set_result, None)

    def stop(self, seconds: float = 0.0) -> None:
        self.stopped = True
        self.loop.run(self.listener.stop(seconds))


@pytest.fixture(params=[UNIX, TCP])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    loop = LoopThread.acquire()
    running = Served(loop, request.param)
    yield running
    running.transport.close()
    if not running.stopped:
        running.stop()
    loop.release()


over_unix = pytest.mark.parametrize("served", [UNIX], indirect=True)


def test_calls_of_all_shapes_are_answered(served: Served) -> None:
    assert served.call("Echo", b"hello") == [b"hello"]
    assert served.call("Echo", MEBIBYTE) == [MEBIBYTE]
    assert served.call("Size", *[MEBIBYTE] * 9) == [b"%d" % (9 << 20)]
    assert served.call("Repeat", b"9") == [MEBIBYTE] * 9
    assert served.call("Repeat", b"0") == []
    assert served.call("Tell", b"3") == [b"0", b"1", b"2"]


def test_a_call_that_fails_leaves_the_next_one_alone(served: Served) -> None:
    assert served.refused("Fail", b"") is grpc.StatusCode.UNKNOWN
    assert served.refused("Absent", b"") is grpc.StatusCode.UNIMPLEMENTED
    # The client stops sending once it sees the answer.
    for count in (1, 2, 200):
        code = served.refused("Refuse", *[MEBIBYTE] * count)
        assert code is grpc.StatusCode.NOT_FOUND
    assert served.call("Echo", b"hello") == [b"hello"]


@over_unix
def test_what_lies_in_memory_is_told_while_its_handler_goes_on(served: Served) -> None:
    responses = served.send("Begin", b"", room=1).responses

    assert responses.segment is not None
    assert next(responses) == b"begun"
    served.release()
    assert list(responses) == [b"ended"]


@over_unix
def test_nothing_is_told_behind_the_end_of_a_call(served: Served) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(served.send("GiveUp", b"", room=1).responses)

    assert caught.value.code() is grpc.StatusCode.ABORTED
    again = served.send("Echo", b"hello", room=1).responses
    assert list(again) == [b"hello"]


def test_what_a_server_fails_with_stays_there(served: Served) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        served.call("Fail", b"")
    assert "secret" not in str(caught.value)


def test_a_call_that_is_given_up_is_cancelled_on_the_server(served: Served) -> None:
    attempt = served.send("Wait", b"")
    assert served.echo.waiting.wait(20)
    attempt.call.cancel()
    assert served.echo.cancelled.wait(20)
    with pytest.raises(grpc.RpcError):
        list(attempt.responses)


def test_a_call_that_takes_too_long_fails_and_is_cancelled(served: Served) -> None:
    assert served.refused("Wait", b"") is grpc.StatusCode.DEADLINE_EXCEEDED
    assert served.echo.cancelled.wait(20)


def test_the_parts_of_a_call_share_its_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes 5 s, as its clock has it, of the 20 that there are."""
    clock = SimpleNamespace(monotonic=itertools.count(step=5).__next__)
    monkeypatch.setattr(socket_transport, "time", clock)
    assert served.call("Size", MEBIBYTE) == [b"%d" % (1 << 20)]
    with pytest.raises(grpc.RpcError) as caught:
        served.call("Size", *[MEBIBYTE] * 9)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_server_that_stops_ends_the_call_under_way_and_takes_no_other(
    served: Served,
) -> None:
    attempt = served.send("Wait", b"")
    assert served.echo.waiting.wait(20)
    stopping = threading.Thread(target=served.stop, args=[20.0])
    stopping.start()

    def refuses() -> bool:
        with suppress(grpc.RpcError):
            served.call("Echo", b"")
            return False
        return True

    with pytest.raises(OSError):
        eventually(refuses)
        served.call("Echo", b"")
    served.release()
    assert list(attempt.responses) == [b"released"]
    stopping.join(20)
    assert not stopping.is_alive()


@over_unix
def test_a_server_that_stops_lets_what_it_has_answered_be_read(served: Served) -> None:
    attempt = served.send("Repeat", b"1")
    (peer,) = served.listener._peers
    eventually(lambda: peer._call is None and peer._out._nbytes > 0)
    stopping = threading.Thread(target=served.stop, args=[20.0])
    stopping.start()
    eventually(lambda: peer._closing)
    assert list(attempt.responses) == [MEBIBYTE]
    stopping.join(20)
    assert not stopping.is_alive()


def test_a_server_that_stops_at_once_cancels_what_is_under_way(served: Served) -> None:
    attempt = served.send("Wait", b"")
    assert served.echo.waiting.wait(20)
    served.stop()
    assert served.echo.cancelled.is_set()
    with pytest.raises(grpc.RpcError) as caught:
        list(attempt.responses)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("data", GARBAGE)
def test_strangers_are_hung_up_on(served: Served, data: bytes) -> None:
    with served.place.connect(20) as stranger:
        stranger.sendall(data)
        with suppress(ConnectionResetError):
            while stranger.recv(100):
                pass
    assert served.call("Echo", b"hello") == [b"hello"]


def send_all(link: SocketLink, messages: list[bytes]) -> None:
    for message in messages:
        link.send(Kind.CALL, message, True, b"/echo.Echo/Echo")


def test_calls_that_are_pipelined_are_answered_in_order(served: Served) -> None:
    link = SocketLink(served.place)
    link.send(Kind.CALL, b"", True, b"/echo.Echo/Wait")
    asked = [b"%d" % number * 1000 for number in range(1000)]
    sending = threading.Thread(target=send_all, args=(link, asked))
    sending.start()
    assert served.echo.waiting.wait(20)
    served.release()
    answers = [bytes(next(link.frames()).message) for _ in range(1001)]
    assert answers == [b"released", *asked]
    sending.join()
    link.close()


def test_a_long_call_before_the_first_ends_is_hung_up_on(served: Served) -> None:
    link = SocketLink(served.place)
    link.send(Kind.CALL, b"", True, b"/echo.Echo/Wait")
    link.send(Kind.CALL, b"", False, b"/echo.Echo/Size")
    with pytest.raises(ConnectionError):
        next(link.frames())
    link.close()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_sockets_with_large_descriptors_do(
    served: Served, many_descriptors: None
) -> None:
    link = SocketLink(served.place)
    low = link._socket
    link._socket = socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD, 1500))
    low.close()
    assert not link.is_answered
    link.send(Kind.CALL, b"hello", True, b"/echo.Echo/Echo")
    eventually(lambda: link.is_answered)
    link.close()


def elsewhere(place: Place, **changed: Any) -> Place:
    return cast(Place, replace(cast(Any, place), **changed))


def test_who_has_taken_the_name_or_the_port_of_a_server_is_not_believed(
    served: Served,
) -> None:
    with pytest.raises(ConnectionRefusedError, match="somebody else"):
        SocketLink(elsewhere(served.place, secret=bytes(32)))


def test_a_client_that_does_not_know_the_secret_is_not_let_in(served: Served) -> None:
    with served.place.connect(20) as stranger:
        hello = prefix(Kind.HELLO, NONCE_BYTES, True)
        stranger.sendall(hello + bytes(NONCE_BYTES))
        assert len(stranger.recv(100)) == len(hello) + HELLO_BYTES
        stranger.sendall(hello + bytes(NONCE_BYTES))
        assert stranger.recv(1) == b""


def test_who_says_nothing_is_not_waited_for_long(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = TcpPlace("127.0.0.1", silent.getsockname()[1], bytes(32), 15)
        with pytest.raises(TimeoutError):
            SocketLink(place, 0.05)


def test_who_speaks_of_more_than_a_proof_is_given_no_memory(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as liar:
        place = TcpPlace("127.0.0.1", liar.getsockname()[1], bytes(32), 15)

        def lie() -> None:
            connection, _ = liar.accept()
            with connection:
                connection.sendall(prefix(Kind.HELLO, 4 << 20, True))
                connection.recv(1 << 16)

        lying = threading.Thread(target=lie)
        lying.start()
        with pytest.raises(MalformedStreamError, match="at most 64"):
            SocketLink(place)
        lying.join()


@pytest.mark.parametrize("secret", [b"", bytes(32)])
def test_a_socket_that_is_not_the_servers_is_not_used(
    served: Served, secret: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "stratagem")
    told = FrameSockets()
    told.CopyFrom(served.told)
    told.secret = secret
    transport = ServerTransport("127.0.0.1:1")
    for _ in range(2):
        transport.learn(told)
        assert transport.way == GRPC
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith(f"127.0.0.1:1 is not called by {served.place.way}: ")
    transport.learn(served.told)
    assert transport.way == served.place.way
    transport.close()


def test_threads_that_hear_of_a_socket_at_once_connect_to_it_once(
    served: Served,
) -> None:
    transport = ServerTransport("127.0.0.1:1")
    threads = [
        threading.Thread(target=transport.learn, args=(served.told,)) for _ in range(8)
    ]
    with transport._learning:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert transport.way == served.place.way
    eventually(lambda: len(served.listener._peers) == 1)
    transport.close()


def test_memory_is_shared_on_one_host_only(served: Served) -> None:
    link = SocketLink(served.place)
    if served.place.can_share:
        assert link.share(1 << 20)
    else:
        link.send(Kind.SEGMENT, b"", is_last=True)
        (answer,) = link.frames()
        assert RecordedStatus.FromString(bytes(answer.message)).code
    link.close()
