"""A request that ends servers is not sent to each that is started in their place."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stratagem import AbortedError, ParameterServerStrategy, UnavailableError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.servers.moving_servers import MovingServers, Resolver, counters
from tests.conftest import TOKEN

PATIENCE = 60


class Overwhelmed(ParameterServer):
    """Works on the first request that changes variables until it is stopped."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self.works, self.ends = threading.Event(), False

    def _handlers(self) -> Any:
        handlers = super()._handlers()
        state: Any = self._state
        state.compute.run = self._endlessly
        return handlers

    async def _endlessly(self, *_: object) -> None:
        self.works.set()
        while not self.ends:
            await asyncio.sleep(0.01)
        raise UnavailableError("the server has ended")

    async def _refuse(self, seconds: float) -> None:
        self.ends = True
        await super()._refuse(seconds)


class Successors(MovingServers):
    """Servers whose successors end while they work."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.kind: type[ParameterServer] = ParameterServer
        super().__init__(root, stack)

    def _started(self, task: int) -> ParameterServer:
        settings = ServerSettings(task=task, token=TOKEN, restore=str(self.root))
        return self._stack.enter_context(self.kind(settings))

    def end_at_work(self, task: int, over: threading.Event) -> int:
        """Moves a server, and again whenever it works on a request, until that is over.

        Returns:
            How often it worked on one.
        """
        self.kind, worked = Overwhelmed, 0
        self.move(task)
        while not over.is_set():
            server = self._running[task]
            assert isinstance(server, Overwhelmed)
            if server.works.wait(0.05):
                worked += 1
                self.move(task)
        return worked


@pytest.mark.unlogged
def test_what_was_under_way_when_a_server_ended_twice_is_not_sent_again(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        servers = Successors(tmp_path / "run", stack)
        strategy = stack.enter_context(ParameterServerStrategy(Resolver(servers)))
        _, counter = counters(strategy)
        strategy.save(servers.root)
        over, thread = threading.Event(), stack.enter_context(ThreadPoolExecutor(1))
        ending = thread.submit(servers.end_at_work, 1, over)
        try:
            with pytest.raises(AbortedError, match="ended 2 times while Assign was under"):
                while True:
                    counter.assign_add(1.0)
        finally:
            over.set()
        # The first server may have been moved between two requests.
        assert ending.result(PATIENCE) in (1, 2)
