"""Waiting for what another request brings about."""

from __future__ import annotations

import asyncio
import gc
import weakref
from functools import partial

import pytest

from stratagem_proto.errors import UnavailableError
from stratagem_psserver.waiting import AwaitedClient, Waiter, Waits

NEVER = partial(dict[str, str]().get, "never")

WAITER = Waiter(
    "/job:worker/task:1", "step 3", lambda: [AwaitedClient("/job:worker/task:0", "push")]
)


class Subject:
    """Something to wait for that can be seen to be forgotten."""


def test_all_who_wait_look_again_when_their_subject_changes() -> None:
    async def scenario() -> list[str | None]:
        waits, outcomes = Waits(), dict[str, str]()
        waiting = [
            asyncio.create_task(waits.until(name, lambda: outcomes.get("a"), seconds, WAITER))
            for name, seconds in [("a", 60.0), ("a", 60.0), ("b", 0.01)]
        ]
        await asyncio.sleep(0)
        outcomes["a"] = "done"
        waits.changed("a")
        return list(await asyncio.gather(*waiting[:2]))

    assert asyncio.run(scenario()) == ["done", "done"]


def test_nothing_is_left_of_a_wait_that_was_too_long() -> None:
    async def scenario() -> None:
        subject = Subject()
        waits = Waits()
        assert await waits.until(subject, NEVER, 0.01, WAITER) is None
        forgotten = weakref.ref(subject)
        del subject
        await asyncio.sleep(0)  # an event loop may hold it until its next round
        gc.collect()
        assert forgotten() is None
        # Alive until here: it is not with the waits that the subject went.
        waits.changed("another")

    asyncio.run(scenario())


def test_closing_ends_waits_present_and_future() -> None:
    async def scenario() -> None:
        waits = Waits()
        present = asyncio.create_task(waits.until("a", NEVER, 60, WAITER))
        await asyncio.sleep(0)
        waits.close(UnavailableError("closed"))
        for wait in (present, waits.until("b", NEVER, 60, WAITER)):
            with pytest.raises(UnavailableError, match="closed"):
                await wait

    asyncio.run(scenario())


def test_who_waits_for_whom_is_told_while_it_lasts() -> None:
    async def scenario() -> None:
        waits, outcomes = Waits(), dict[str, str]()
        waiting = asyncio.create_task(
            waits.until(("group", "Adam"), lambda: outcomes.get("done"), 60, WAITER)
        )
        await asyncio.sleep(0)
        (told,) = waits.waiters()
        assert (told.client, told.reason, told.subject) == (WAITER.client, "step", "step 3")
        assert [(one.client, one.missing) for one in told.awaited] == WAITER.awaited()
        outcomes["done"] = "yes"
        waits.changed(("group", "Adam"))
        await waiting
        assert not [*waits.waiters()]

    asyncio.run(scenario())
