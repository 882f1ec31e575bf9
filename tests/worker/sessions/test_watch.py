"""Looking after what lingers in a session."""

from __future__ import annotations

import asyncio
import threading
import time

from stratagem_worker.session import Watch
from tests.worker.links import PATIENCE


def test_it_looks_for_as_long_as_something_lingers() -> None:
    async def looks() -> list[float]:
        watch, done, times = Watch(), asyncio.Event(), list[float]()

        def look(now: float) -> bool:
            times.append(now)
            if len(times) == 3:
                done.set()
            return len(times) < 3

        watch.over(look)
        watch.expect()
        await asyncio.wait_for(done.wait(), PATIENCE)
        assert not watch._awake
        return times

    times = asyncio.run(looks())
    assert times == sorted(times)
    assert times[-1] <= time.monotonic()


def test_any_thread_may_ask_again_once_nothing_lingers() -> None:
    async def count() -> int:
        watch, looked, looks = Watch(), asyncio.Event(), 0

        def look(now: float) -> bool:
            nonlocal looks
            looks += 1
            looked.set()
            return False

        watch.over(look)
        for _ in range(3):
            looked.clear()
            threading.Thread(target=watch.ask).start()
            await asyncio.wait_for(looked.wait(), PATIENCE)
        return looks

    assert asyncio.run(count()) >= 3


def test_who_asks_while_it_looks_is_looked_at_again() -> None:
    async def looks() -> int:
        watch, twice, count = Watch(), asyncio.Event(), 0

        def look(now: float) -> bool:
            nonlocal count
            count += 1
            if count == 1:
                watch.ask()
            else:
                twice.set()
            return False

        watch.over(look)
        watch.expect()
        await asyncio.wait_for(twice.wait(), PATIENCE)
        return count

    assert asyncio.run(looks()) == 2
