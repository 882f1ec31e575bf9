"""Locks by name: held together, never in a circle, gone when nobody needs them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stratagem_psserver.variables.locks import Holding, LockUse, LockWait, VariableLocks


def test_holders_of_a_common_name_exclude_each_other_without_deadlock() -> None:
    async def contend() -> None:
        locks, inside = VariableLocks(), set[str]()
        chance = random.Random(0)

        async def hold() -> None:
            names = sorted(chance.sample("abcde", 3))
            async with Holding(locks, lambda: names):
                assert inside.isdisjoint(names)
                inside.update(names)
                await asyncio.sleep(0)
                inside.difference_update(names)

        await asyncio.wait_for(asyncio.gather(*(hold() for _ in range(300))), 30)
        assert not inside

    asyncio.run(contend())


def test_one_who_gives_up_waiting_leaves_the_lock_to_the_others() -> None:
    async def give_up() -> None:
        locks = VariableLocks()
        async with Holding(locks, lambda: ["b"]):
            waiting = asyncio.ensure_future(hold(locks))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await asyncio.wait_for(hold(locks), 30)

    async def hold(locks: VariableLocks) -> None:
        async with Holding(locks, lambda: ["a", "b"]):
            pass

    asyncio.run(give_up())


def test_a_body_that_fails_releases_its_locks() -> None:
    async def fail_and_retry() -> None:
        locks = VariableLocks()
        with pytest.raises(KeyError):
            async with Holding(locks, lambda: ["a"]):
                raise KeyError
        async with Holding(locks, lambda: ["a"]):
            pass

    asyncio.run(asyncio.wait_for(fail_and_retry(), 30))


def test_who_owns_a_name_is_asked_again_after_waiting() -> None:
    async def scenario() -> None:
        locks, owners = VariableLocks(), {"a": "a", "slot": "slot"}
        owned = asyncio.Event()

        async def reader() -> None:
            async with Holding(locks, lambda: sorted(owners.values())):
                owned.set()

        async with Holding(locks, lambda: ["w"]):
            async with Holding(locks, lambda: ["a"]):
                reading = asyncio.create_task(reader())
                await asyncio.sleep(0)
                owners["slot"] = "w"
            for _ in range(10):
                await asyncio.sleep(0)
            assert not owned.is_set()
        await reading

    asyncio.run(scenario())


def test_one_cancelled_when_its_turn_has_come_passes_it_on() -> None:
    async def scenario() -> None:
        locks = VariableLocks()

        async def hold() -> None:
            async with Holding(locks, lambda: ["a"]):
                pass

        async with Holding(locks, lambda: ["a"]):
            first, second = (asyncio.ensure_future(hold()) for _ in range(2))
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.wait_for(second, 30)

    asyncio.run(scenario())


def test_who_need_not_hold_locks_for_longer_is_told_when_somebody_waits() -> None:
    async def tell() -> list[str]:
        locks, told = VariableLocks(), list[str]()

        async def want(name: str) -> None:
            async with Holding(locks, lambda: [name]):
                told.append(f"{name} is held")

        first = Holding(locks, lambda: ["a", "b"])
        async with first:
            first.notify_when_contended(lambda: told.append("hurry"))
            await asyncio.wait_for(want("c"), 30)
            waiting = asyncio.ensure_future(want("b"))
            await asyncio.sleep(0)
            told.append("released")
        await asyncio.wait_for(waiting, 30)
        await asyncio.wait_for(asyncio.gather(want("a"), want("a")), 30)
        return told

    assert asyncio.run(tell()) == [
        *("c is held", "hurry", "released", "b is held", "a is held", "a is held")
    ]


def test_who_holds_locks_is_told_at_once_if_somebody_waits_already() -> None:
    async def tell() -> list[str]:
        locks, told = VariableLocks(), list[str]()
        first, second = (Holding(locks, lambda: ["a"]) for _ in range(2))
        async with first:
            waiting = asyncio.ensure_future(second.acquire())
            await asyncio.sleep(0)
            first.notify_when_contended(lambda: told.append("hurry"))
        await asyncio.wait_for(waiting, 30)
        return told

    assert asyncio.run(tell()) == ["hurry"]


def test_who_was_just_handed_a_lock_keeps_it_from_the_others() -> None:
    async def scenario() -> None:
        waits: list[LockWait] = []

        @contextmanager
        def noted(wait: LockWait) -> Iterator[None]:
            waits.append(wait)
            yield

        locks = VariableLocks(noted)

        async def hold(client: str) -> None:
            async with Holding(locks, lambda: ["a"], LockUse(client, "update")):
                pass

        async with Holding(locks, lambda: ["a"]):
            waiting = [asyncio.ensure_future(hold(client)) for client in ("second", "third")]
            await asyncio.sleep(0)
        assert waits[1].holder() == LockUse("second", "update")
        await asyncio.wait_for(asyncio.gather(*waiting), 30)

    asyncio.run(scenario())
