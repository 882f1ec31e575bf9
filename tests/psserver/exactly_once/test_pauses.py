"""Moments in which no request is being applied."""

from __future__ import annotations

import asyncio

from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState


async def _two_at_once() -> list[str]:
    state, events = ServerState(ServerSettings()), list[str]()
    begun = asyncio.Event()

    async def pause(name: str) -> None:
        async with state.mutations.paused():
            events.append(f"{name} begins")
            begun.set()
            await asyncio.sleep(0.01)
            events.append(f"{name} ends")

    try:
        first = asyncio.ensure_future(pause("first"))
        await begun.wait()
        await asyncio.gather(first, pause("second"))
    finally:
        state.compute.close()
    return events


def test_pauses_come_one_after_the_other() -> None:
    # Each has a list of its own of those who wait for its end.
    assert asyncio.run(_two_at_once()) == [
        "first begins",
        "first ends",
        "second begins",
        "second ends",
    ]
