"""Proofs at sockets: which clients are let in, and which servers are believed."""

from __future__ import annotations

import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from stratagem._ps_client.server_transport import ServerTransport
from stratagem._ps_client.socket_transport import SocketTransport
from stratagem._ps_client.transport import Call
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.proofs import NONCE_BYTES
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_rpc.channel import GRPC
from stratagem_rpc.socket_server import listener, peer
from stratagem_rpc.sockets.client import Endpoint, SocketLink, TcpEndpoint
from stratagem_rpc.sockets.frames import HELLO_BYTES, FrameKind, FrameReader, prefix
from stratagem_rpc.sockets.streams import Stream
from tests.client.servers.echo import SESSION, Served
from tests.waiting import eventually

GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    prefix(FrameKind.CALL, 0, True, b"/echo.Echo/Echo"),
    prefix(FrameKind.HELLO, 47, True) + bytes(47),
    prefix(FrameKind.HELLO, 2**31, True),
]


@pytest.mark.parametrize("data", GARBAGE)
def test_strangers_are_hung_up_on(served: Served, data: bytes) -> None:
    with served.endpoint.connect(20) as stranger:
        stranger.sendall(data)
        with suppress(ConnectionResetError):
            while stranger.recv(100):
                pass
    assert served.call("Echo", b"hello") == [b"hello"]


def say(stranger: socket.socket, stream: Stream, data: bytes) -> None:
    for piece in stream.sealed(data):
        stranger.sendall(piece)


def elsewhere(endpoint: Endpoint, **changed: Any) -> Endpoint:
    return cast(Endpoint, replace(cast(Any, endpoint), **changed))


def test_who_has_taken_the_name_or_the_port_of_a_server_is_not_believed(
    served: Served,
) -> None:
    with pytest.raises(ConnectionRefusedError, match="somebody else"):
        SocketLink(elsewhere(served.endpoint, secret=bytes(32)))


def test_a_client_that_does_not_know_the_secret_is_not_let_in(served: Served) -> None:
    with served.endpoint.connect(20) as stranger:
        stream = served.endpoint.stream(stranger, time.monotonic() + 20)
        hello = prefix(FrameKind.HELLO, len(SESSION) + NONCE_BYTES, True)
        say(stranger, stream, hello + SESSION + bytes(NONCE_BYTES))
        (answer,) = stream.frames(FrameReader(bytearray(100)))
        assert len(answer.message) == HELLO_BYTES
        say(stranger, stream, prefix(FrameKind.HELLO, NONCE_BYTES, True) + bytes(NONCE_BYTES))
        assert stranger.recv(1) == b""


def test_who_says_nothing_is_not_waited_for_long(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = TcpEndpoint("127.0.0.1", silent.getsockname()[1], SESSION, bytes(32), 15)
        with pytest.raises(TimeoutError):
            SocketLink(endpoint, 0.05)


class PatientEndpoint(TcpEndpoint):
    seconds = 60.0


def test_who_closes_a_transport_ends_the_greeting_of_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as thread:
        endpoint = PatientEndpoint("127.0.0.1", silent.getsockname()[1], SESSION, bytes(32), 15)
        transport = SocketTransport(endpoint)
        call = Call("/echo.Echo/Echo", lambda _: iter([b"hello"]), 20.0)
        calling = thread.submit(transport.send, call)
        with silent.accept()[0] as accepted:
            assert accepted.recv(100)  # the greeting
            transport.close()
            with pytest.raises(OSError) as ended:
                calling.result(20)
            assert not isinstance(ended.value, TimeoutError)


def test_strangers_keep_out_neither_clients_nor_each_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_MOST_UNPROVED", 3)
    monkeypatch.setattr(peer, "_HELLO_SECONDS", 60)
    known = SocketLink(served.endpoint)
    with ExitStack() as stack:
        strangers = [stack.enter_context(served.endpoint.connect(20)) for _ in range(6)]
        for first in strangers[:3]:
            assert first.recv(1) == b""
        assert served.call("Echo", b"hello") == [b"hello"]
        assert strangers[3].recv(1) == b""
        strangers[5].setblocking(False)
        with pytest.raises(BlockingIOError):
            strangers[5].recv(1)
    assert not known.is_answered
    known.close()
    eventually(lambda: not served.listener._unproved)


def test_who_speaks_of_more_than_a_proof_is_given_no_memory(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as liar:
        endpoint = TcpEndpoint("127.0.0.1", liar.getsockname()[1], SESSION, bytes(32), 15)

        def lie() -> None:
            connection, _ = liar.accept()
            with connection:
                connection.sendall(prefix(FrameKind.HELLO, 4 << 20, True))
                connection.recv(1 << 16)

        lying = threading.Thread(target=lie)
        lying.start()
        with pytest.raises(MalformedStreamError, match="at most 64"):
            SocketLink(endpoint)
        lying.join()


def test_a_server_that_tells_no_secret_is_called_by_grpc(served: Served) -> None:
    told = FrameSockets()
    told.CopyFrom(served.told)
    told.secret = b""
    transport = ServerTransport("127.0.0.1:1")
    transport.learn(told)
    assert transport.way == GRPC
    transport.close()


def test_a_socket_that_is_not_the_servers_is_not_used(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "stratagem")
    told = FrameSockets()
    told.CopyFrom(served.told)
    told.secret = bytes(32)
    transport = ServerTransport("127.0.0.1:1")
    for _ in range(2):
        transport.learn(told)
        assert transport.way == GRPC
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith(f"127.0.0.1:1 is not called by {served.endpoint.way}: ")
    transport.learn(served.told)
    assert transport.way == served.endpoint.way
    transport.close()


def test_threads_that_hear_of_a_socket_at_once_connect_to_it_once(
    served: Served,
) -> None:
    transport = ServerTransport("127.0.0.1:1")
    threads = [threading.Thread(target=transport.learn, args=(served.told,)) for _ in range(8)]
    with transport._learning:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert transport.way == served.endpoint.way
    eventually(lambda: len(served.listener._peers) == 1)
    transport.close()


def test_memory_is_shared_on_one_host_only(served: Served) -> None:
    link = SocketLink(served.endpoint)
    if served.endpoint.can_share:
        assert link.share(1 << 20)
    else:
        link.send(FrameKind.SEGMENT, b"", is_last=True)
        (answer,) = link.frames()
        assert RecordedStatus.FromString(bytes(answer.message)).code
    link.close()
