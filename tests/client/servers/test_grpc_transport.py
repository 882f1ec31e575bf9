"""Calls by gRPC: when there is a channel, and how many."""

from __future__ import annotations

import threading

import grpc
import pytest

from stratagem._ps_client.grpc_transport import GrpcTransport
from stratagem._ps_client.transport import Call
from stratagem_rpc import channel
from stratagem_rpc.channel import Expected, open_channel


def test_a_closed_transport_opens_no_channel() -> None:
    transport = GrpcTransport("127.0.0.1:1")
    transport.close()
    with pytest.raises(ValueError, match="is closed"):
        transport.send(Call("/echo.Echo/Echo", lambda _: iter([b""]), 1.0))


def test_threads_that_call_at_once_open_one_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport, opened = GrpcTransport("127.0.0.1:1"), list[grpc.Channel]()
    other = threading.Thread(target=transport._open)

    def opening(address: str, options: object, expected: Expected) -> grpc.Channel:
        opened.append(open_channel(address, expected=expected))
        if len(opened) == 1:
            other.start()
            other.join(0.05)
        return opened[0]

    monkeypatch.setattr(channel, "open_channel", opening)
    transport._open()
    other.join()
    transport.close()
    assert len(opened) == 1
