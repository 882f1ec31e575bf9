"""Coroutines that run as far as they can before there is a task."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from stratagem_rpc.eager import begin

PRESENT: ContextVar[str] = ContextVar("PRESENT", default="nothing")


async def nested(released: asyncio.Future[str]) -> tuple[str, str]:
    """What is present behind an await, and what is left there by it."""
    token = PRESENT.set("a span")
    try:
        await released
        within = PRESENT.get()
    finally:
        PRESENT.reset(token)
    return within, PRESENT.get()


def test_what_is_set_before_an_await_is_reset_behind_it_and_seen_by_nobody() -> None:
    async def program() -> tuple[str, tuple[str, str]]:
        released: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        work = begin(nested(released))
        outside = PRESENT.get()
        released.set_result("go")
        return outside, await work

    assert asyncio.run(program()) == ("nothing", ("a span", "nothing"))


def test_work_that_waits_for_nothing_is_done_at_once() -> None:
    async def program() -> tuple[bool, tuple[str, str], str]:
        released: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        released.set_result("go")
        work = begin(nested(released))
        return work.done(), work.result(), PRESENT.get()

    assert asyncio.run(program()) == (True, ("a span", "nothing"), "nothing")
