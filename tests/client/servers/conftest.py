"""A server of sockets, by either kind of them, and encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stratagem_rpc.certificates.presented import presenting
from stratagem_rpc.channel import TCP, UNIX
from stratagem_rpc.serving.process import LoopThread
from tests.certified import certified
from tests.client.servers.echo import ENCRYPTED, Served


@pytest.fixture(params=[UNIX, TCP, ENCRYPTED])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    loop, authority = LoopThread.acquire(), certified(tmp_path)
    with ExitStack() as shown:
        if request.param == ENCRYPTED:
            shown.enter_context(presenting(authority.of("worker:0=chief")))
            running = Served(loop, TCP, authority.of("ps:0"))
        else:
            running = Served(loop, request.param)
        yield running
        running.transport.close()
        if not running.stopped:
            running.stop()
    loop.release()
