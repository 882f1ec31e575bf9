"""What all arbiters promise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import pytest

from stratagem_proto.errors import DataLossError, InternalError, UnavailableError
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.replication.arbiter import Arbiter
from tests.psserver.replication.arbiters.places import Place, arbiter_at, view

WRITERS = 8
EPOCHS = 5


def on_a_loop(
    test: Callable[[Place], Coroutine[Any, Any, None]],
) -> Callable[[Place], None]:
    @wraps(test)
    def run(place: Place) -> None:
        asyncio.run(test(place))

    return run


@asynccontextmanager
async def asking(place: Place, **others: Any) -> AsyncIterator[Arbiter]:
    arbiter = arbiter_at(place, **others)
    try:
        yield arbiter
    finally:
        await arbiter.close()


@on_a_loop
async def test_what_is_written_is_read_and_before_there_is_nothing(place: Place) -> None:
    async with asking(place) as arbiter:
        assert await arbiter.read() is None
        for present, following in ((None, view(1, 0)), (view(1, 0), view(2, 0, backup=1))):
            assert await arbiter.replace(present, following)
            assert await arbiter.read() == following


@on_a_loop
async def test_a_view_may_have_no_primary(place: Place) -> None:
    vacant = View(epoch=2, backup=view(1, 1).primary)
    async with asking(place) as arbiter:
        assert await arbiter.replace(None, view(1))
        assert await arbiter.replace(view(1), vacant)
        read = await arbiter.read()
    assert read == vacant
    assert read is not None
    assert not read.HasField("primary")


@on_a_loop
async def test_a_view_outlives_who_has_written_it(place: Place) -> None:
    async with asking(place) as arbiter:
        assert await arbiter.replace(None, view(1))
    async with asking(place) as other:
        assert await other.read() == view(1)
        assert await other.replace(view(1), view(2))


@on_a_loop
async def test_only_who_knows_the_present_view_replaces_it(place: Place) -> None:
    async with asking(place) as arbiter:
        assert not await arbiter.replace(view(1), view(2))
        assert await arbiter.read() is None
        assert await arbiter.replace(None, view(1, 0))
        assert not await arbiter.replace(None, view(1, 1))
        assert not await arbiter.replace(view(1, 1), view(2, 1))
        assert await arbiter.read() == view(1, 0)
        assert await arbiter.replace(view(1, 0), view(2, 0))
        assert not await arbiter.replace(view(1, 0), view(2, 1))
        assert await arbiter.read() == view(2, 0)


@on_a_loop
async def test_of_many_at_once_one_replaces_the_view(place: Place) -> None:
    arbiters = [arbiter_at(place) for _ in range(WRITERS)]
    present = None
    for epoch in range(1, EPOCHS + 1):
        wanted = [view(epoch, index) for index in range(WRITERS)]
        calls = zip(arbiters, wanted, strict=True)
        won = await asyncio.gather(*(one.replace(present, following) for one, following in calls))
        assert sum(won) == 1
        present = wanted[won.index(True)]
        assert [await one.read() for one in arbiters] == [present] * WRITERS
    for arbiter in arbiters:
        await arbiter.close()


@on_a_loop
async def test_each_task_has_a_view_of_its_own(place: Place) -> None:
    async with asking(place) as first, asking(place, task=1) as second:
        assert await first.replace(None, view(1, 0))
        assert await second.read() is None
        assert await second.replace(None, view(1, 1))
        assert await first.read() == view(1, 0)


@on_a_loop
async def test_an_epoch_cannot_be_left_out(place: Place) -> None:
    async with asking(place) as arbiter:
        with pytest.raises(InternalError, match="epoch 0 was to be replaced by one of epoch 2"):
            await arbiter.replace(None, view(2))
        assert await arbiter.replace(None, view(1))
        with pytest.raises(InternalError):
            await arbiter.replace(view(1), view(1, 1))
        assert await arbiter.read() == view(1)


@on_a_loop
async def test_one_that_does_not_answer_is_named_and_others_go_on_meanwhile(place: Place) -> None:
    async with asking(place) as arbiter, asking(place, seconds=0.5) as hasty:
        assert await arbiter.replace(None, view(1))
        with place.out_of_reach():
            waiting = asyncio.ensure_future(hasty.replace(view(1), view(2)))
            await asyncio.sleep(0)
            assert not waiting.done()
            with pytest.raises(UnavailableError, match=r"(task:0 in |ps-0').*(; end|[sS]ee that)"):
                await waiting
        # Whether it was replaced nobody has told.
        present = await arbiter.read()
        assert present in (view(1), view(2))
        assert present is not None
        assert await _is_replaced(arbiter, present)


async def _is_replaced(arbiter: Arbiter, present: View) -> bool:
    # The request that was given up may still be carried out.
    following = view(present.epoch + 1, 5)
    if await arbiter.replace(present, following):
        return await arbiter.read() == following
    return await arbiter.read() == view(2)


@on_a_loop
async def test_what_is_no_view_is_refused_and_left_as_it_is(place: Place) -> None:
    async with asking(place) as arbiter:
        assert await arbiter.replace(None, view(1))
        place.damage()
        for call in (arbiter.read(), arbiter.replace(view(1), view(2))):
            with pytest.raises(DataLossError, match=r"(?s)ps-0.* is no view.*remove it"):
                await call


@on_a_loop
async def test_closing_again_does_nothing(place: Place) -> None:
    arbiter = arbiter_at(place)
    assert await arbiter.replace(None, view(1))
    await arbiter.close()
    await arbiter.close()
