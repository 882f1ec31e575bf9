"""What a server holds while it starts and stops."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import TimeoutError as WaitTimeoutError

import pytest

from stratagem_proto.serving.loop import LoopThread
from stratagem_proto.serving.sockets.listening import unix_socket
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings


class Unlucky(ParameterServer):
    """Cannot begin what goes on beside the calls."""

    async def _begin(self) -> None:
        assert self._state.frame_sockets is not None
        self.local_name = self._state.frame_sockets.name
        raise RuntimeError("the sky has fallen")


def test_a_server_that_fails_while_it_starts_hangs_up() -> None:
    server = Unlucky(ServerSettings())
    with pytest.raises(RuntimeError, match="the sky has fallen"):
        server.start()
    with socket.socket(socket.AF_UNIX) as local, pytest.raises(ConnectionRefusedError):
        local.connect(b"\0" + server.local_name)
    with ParameterServer(ServerSettings(bind=server.address)):
        pass


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
