"""Calls over sockets of this host, and when they go by gRPC instead."""

from __future__ import annotations

import fcntl
import itertools
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import grpc
import pytest

from stratagem._ps_client import socket_transport
from stratagem_rpc.channel import UNIX
from stratagem_rpc.sockets import client as socket_client
from stratagem_rpc.sockets.client import SocketLink
from stratagem_rpc.sockets.frames import FrameKind
from tests.client.servers.echo import MEBIBYTE, Served
from tests.waiting import eventually

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
    served.transport.connect()
    clock = SimpleNamespace(monotonic=itertools.count(step=5).__next__)
    for module in (socket_transport, socket_client):
        monkeypatch.setattr(module, "time", clock)
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


def send_all(link: SocketLink, messages: list[bytes]) -> None:
    for message in messages:
        link.send(FrameKind.CALL, message, True, b"/echo.Echo/Echo")


def test_calls_that_are_pipelined_are_answered_in_order(served: Served) -> None:
    link = SocketLink(served.endpoint)
    link.send(FrameKind.CALL, b"", True, b"/echo.Echo/Wait")
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
    link = SocketLink(served.endpoint)
    link.send(FrameKind.CALL, b"", True, b"/echo.Echo/Wait")
    link.send(FrameKind.CALL, b"", False, b"/echo.Echo/Size")
    with pytest.raises(ConnectionError):
        next(link.frames())
    link.close()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_sockets_with_large_descriptors_do(served: Served, many_descriptors: None) -> None:
    link = SocketLink(served.endpoint)
    low = link._socket
    link._socket = socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD, 1500))
    low.close()
    assert not link.is_answered
    link.send(FrameKind.CALL, b"hello", True, b"/echo.Echo/Echo")
    eventually(lambda: link.is_answered)
    link.close()
