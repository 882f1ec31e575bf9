"""Calls by gRPC whose first message does not come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
import torch

from stratagem_proto.errors import PermissionDeniedError
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.session_pb2 import AttendSessionRequest
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import SERVER_OPTIONS
from stratagem_rpc.serving.entrance import Limits
from tests.conftest import TOKEN
from tests.psserver.wire import SECONDS, SERVICE, RawClient
from tests.strangers import greeted
from tests.waiting import eventually

MOST = 20


class FewCalls(ParameterServer):
    members = Limits(MOST, SECONDS)
    strangers = Limits(MOST, SECONDS, grace=0.05)


class FewStrangers(ParameterServer):
    strangers = Limits(2, SECONDS)


class ShortTime(ParameterServer):
    members = strangers = Limits(MOST, 0.2)


class QuickToClose(ParameterServer):
    options = tuple(
        (name, 200 if name == "grpc.max_connection_idle_ms" else value)
        for name, value in SERVER_OPTIONS
    )


@contextmanager
def served(kind: type[ParameterServer]) -> Iterator[tuple[ParameterServer, RawClient]]:
    with kind(ServerSettings(token=TOKEN)) as server, RawClient(server.address, TOKEN) as client:
        client.open()
        client.create(w=torch.zeros(3))
        yield server, client


def silent(client: RawClient, method: str, ended: threading.Event) -> Any:
    """A call that has begun, of which no message comes."""

    def nothing() -> Iterator[bytes]:
        ended.wait(SECONDS)
        yield from ()

    call: grpc.StreamStreamMultiCallable[bytes, bytes]
    call = client.channel.stream_stream(f"/{SERVICE}/{method}")
    return call(nothing(), timeout=SECONDS)


@pytest.mark.parametrize("method", ["Assign", "UpdateAndRead", "Read", "ListVariables"])
def test_a_call_without_a_message_ends_in_time_by_name(method: str) -> None:
    ended = threading.Event()
    with served(ShortTime) as (server, client):
        before = client.everything()
        call = silent(client, method, ended)
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "the first message of the call did not come in 0.2 s" in call.details()
        ended.set()
        assert not len(server._entrance.members)
        assert client.everything() == before


def test_of_many_calls_without_a_message_the_oldest_gives_its_place_to_another() -> None:
    ended = threading.Event()
    with served(FewCalls) as (server, client):
        before = client.everything()
        calls = []
        for number in range(1, MOST + 1):
            calls.append(silent(client, "Assign", ended))
            eventually(lambda number=number: len(server._entrance.members) == number)  # type: ignore[misc]
        # Who sends what he asks with is answered.
        assert client.everything() == before
        calls.append(silent(client, "Assign", ended))
        assert calls[0].code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (
            f"more than {MOST} calls of this kind wait for their first message"
            in calls[0].details()
        )
        ended.set()


def test_a_stranger_who_begins_calls_without_end_keeps_nobody_out() -> None:
    with served(FewCalls) as (server, client), greeted(server.address) as stranger:
        for number in range(10 * MOST):
            stranger.begin(f"/{SERVICE}/{('Assign', 'OpenSession')[number % 2]}")
        eventually(lambda: len(server._entrance.strangers) == MOST)
        client.assign("w", torch.ones(3))
        assert client.read("w")[0].tolist() == [1, 1, 1]
        assert not len(server._entrance.members)


def test_who_has_shown_to_be_of_the_cluster_is_no_stranger() -> None:
    ended = threading.Event()
    with served(FewStrangers) as (server, client), RawClient(server.address, TOKEN) as other:
        strange = [silent(other, "Assign", ended) for _ in range(5)]
        known = [silent(client, "Assign", ended) for _ in range(5)]
        eventually(lambda: len(server._entrance.members) == 5)
        eventually(lambda: sum(call.done() for call in strange) == 3)
        assert len(server._entrance.strangers) == 2
        # As after a cut: another connection, over which the session goes on.
        other.session_id = client.session_id
        other.heartbeat()
        known += [silent(other, "Assign", ended) for _ in range(5)]
        eventually(lambda: len(server._entrance.members) == 10)
        assert not any(call.done() for call in known)
        ended.set()


def test_an_id_of_a_session_alone_makes_nobody_a_member() -> None:
    ended = threading.Event()
    with served(FewStrangers) as (server, client), RawClient(server.address, TOKEN) as other:
        other.session_id = client.session_id[:SESSION_ID_BYTES]
        with pytest.raises(PermissionDeniedError):
            other.heartbeat()
        # A call that nobody keeps is cancelled.
        call = silent(other, "Assign", ended)
        eventually(lambda: len(server._entrance.strangers) == 1)
        assert not call.done()
        ended.set()


def test_a_connection_without_a_call_is_closed_and_that_of_a_session_is_not() -> None:
    with served(QuickToClose) as (server, client), greeted(server.address) as stranger:
        attending: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        attending = client.channel.unary_unary(f"/{SERVICE}/AttendSession")
        asked = AttendSessionRequest(session_id=client.session_id).SerializeToString()
        call = attending.future(asked, timeout=SECONDS)
        eventually(stranger.is_hung_up)
        client.assign("w", torch.ones(3))
        assert not call.done()
        call.cancel()
