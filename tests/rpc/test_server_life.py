"""Resources of a server while it starts and stops."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import TimeoutError as WaitTimeoutError
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import open_channel
from stratagem_rpc.serving.process import LoopThread
from stratagem_rpc.socket_server.listener import unix_socket
from tests.probes import NOT_SERVING, SERVING, health_at
from tests.waiting import eventually


class Unlucky(ParameterServer):
    """Cannot begin what goes on beside the calls."""

    async def _begin(self) -> None:
        assert self._state.frame_sockets is not None
        self.local_name = self._state.frame_sockets.described.name
        raise RuntimeError("the sky has fallen")


def test_a_server_that_fails_while_it_starts_hangs_up() -> None:
    server = Unlucky(ServerSettings())
    with pytest.raises(RuntimeError, match="the sky has fallen"):
        server.start()
    with socket.socket(socket.AF_UNIX) as local, pytest.raises(ConnectionRefusedError):
        local.connect(b"\0" + server.local_name)
    with ParameterServer(ServerSettings(bind=server.address)):
        pass
    server.stop()  # which has nothing to stop


def test_a_name_that_cannot_be_taken_leaves_no_socket() -> None:
    with pytest.raises(OSError, match="too long"):
        unix_socket(bytes(200))


def test_who_waits_for_the_loop_need_not_wait_for_ever() -> None:
    ended = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def nothing() -> None:
        pass

    loop = LoopThread.acquire()
    with pytest.raises(WaitTimeoutError):
        loop.run(endless(), 0.01)
    loop.run(nothing())
    assert ended == [True]
    loop.release()


def test_a_proxy_for_the_web_does_not_lead_to_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as proxy,
        ParameterServer(ServerSettings()) as server,
    ):
        for name in "http_proxy", "https_proxy", "grpc_proxy":
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("no_grpc_proxy", raising=False)
        assert health_at(server.health_address) == SERVING


@pytest.mark.cluster
def test_a_server_whose_loop_is_stuck_does_not_say_that_it_serves() -> None:
    going_on = threading.Event()
    with ParameterServer(ServerSettings(lease_seconds=2.0)) as server:
        assert health_at(server.health_address) == SERVING
        server._loop.call(going_on.wait)
        try:
            eventually(lambda: health_at(server.health_address) == NOT_SERVING, 60)
        finally:
            going_on.set()
        eventually(lambda: health_at(server.health_address) == SERVING, 60)


def test_streams_that_look_at_services_leave_threads_to_probes() -> None:
    closed = threading.Event()

    def idle() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        closed.wait(60)

    with (
        ParameterServer(ServerSettings()) as server,
        open_channel(server.health_address) as channel,
    ):
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = stub.ServerReflectionInfo
        try:
            streams = [ask(idle()) for _ in range(2)]
            names = [next(each).list_services_response.service for each in streams]
            assert ParameterServer.service in {each.name for each in names[0]}
            with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
                next(ask(idle()))
            assert health_at(server.health_address) == SERVING
        finally:
            closed.set()
