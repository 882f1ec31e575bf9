"""A server of sockets, by either kind of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratagem_proto.serving.loop import LoopThread
from stratagem_proto.wire.transport import TCP, UNIX
from tests.client.servers.echo import Served


@pytest.fixture(params=[UNIX, TCP])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    loop = LoopThread.acquire()
    running = Served(loop, request.param)
    yield running
    running.transport.close()
    if not running.stopped:
        running.stop()
    loop.release()
