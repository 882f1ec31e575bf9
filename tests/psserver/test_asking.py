"""Asking servers without a session."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import grpc
import pytest

from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_psserver.server import ParameterServer
from stratagem_rpc.asking import Answer, begin_status
from stratagem_rpc.channel import open_channel
from tests.conftest import TOKEN

PATIENCE = 60.0


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def code_of(answer: Answer[GetStatusResponse]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as failed:
        answer.result(PATIENCE)
    code: grpc.StatusCode = failed.value.code()
    return code


@pytest.mark.parametrize("token", [TOKEN, ""])
def test_what_is_asked_can_be_given_up(silent: str, token: str) -> None:
    with open_channel(silent) as channel:
        answer = begin_status(channel, token, PATIENCE)
        told: list[object] = []
        answer.add_done_callback(told.append)
        assert answer.cancel()
        assert code_of(answer) is grpc.StatusCode.CANCELLED
        assert told == [answer]
        assert not answer.cancel()


def test_who_closes_the_channel_is_not_left_waiting(silent: str) -> None:
    channel = open_channel(silent)
    answer = begin_status(channel, TOKEN, PATIENCE)
    channel.close()
    assert code_of(answer) is grpc.StatusCode.CANCELLED


def test_both_calls_together_have_one_deadline(silent: str) -> None:
    with open_channel(silent) as channel:
        answer = begin_status(channel, TOKEN, 0.05, wait_for_ready=True)
        assert code_of(answer) is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("close", [grpc.Channel.close, lambda channel: None])
def test_a_channel_that_closes_between_the_two_calls_fails_the_answer(
    server: ParameterServer,
    close: Callable[[grpc.Channel], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel, ask = open_channel(server.address), Answer._ask

    def close_and_ask(answer: Answer[GetStatusResponse]) -> None:
        close(channel)
        ask(answer)

    monkeypatch.setattr(Answer, "_ask", close_and_ask)
    answer = begin_status(channel, TOKEN, PATIENCE)
    if close is grpc.Channel.close:
        assert code_of(answer) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    else:
        assert answer.result(PATIENCE).task.job == "ps"
    channel.close()


def test_a_server_with_another_token_is_told_apart(server: ParameterServer) -> None:
    with open_channel(server.address) as channel:
        answer = begin_status(channel, "another cluster's secret", PATIENCE)
        assert code_of(answer) is grpc.StatusCode.UNAUTHENTICATED
