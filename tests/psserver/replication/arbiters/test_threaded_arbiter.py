"""A register that cannot be made to give up does not hold up its arbiter."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.replication.arbiter import Deadline, ThreadedArbiter
from tests.psserver.replication.arbiters.places import PATIENCE, view


class Register:
    """A register whose first call lasts until it is told to end, as looking up a name might."""

    name = "a register"

    def __init__(self) -> None:
        self.end = threading.Event()
        self.calls = 0

    def read(self, deadline: Deadline) -> View | None:
        self.calls += 1
        if self.calls == 1:
            self.end.wait(PATIENCE)
        return view(1)

    def replace(self, present: View | None, following: View, deadline: Deadline) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        self.end.set()


def test_a_call_that_does_not_end_is_given_up_and_later_ones_are_answered() -> None:
    register = Register()

    async def read() -> None:
        arbiter = ThreadedArbiter(register, seconds=0.5)
        with pytest.raises(UnavailableError, match=r"a register has not answered within 0.5 s"):
            await arbiter.read()
        assert not register.end.is_set()
        assert await arbiter.read() == view(1)
        await arbiter.close()

    asyncio.run(read())


def test_who_has_lost_interest_leaves_nothing_behind() -> None:
    register = Register()

    async def read() -> None:
        arbiter = ThreadedArbiter(register, PATIENCE)
        waiting = asyncio.ensure_future(arbiter.read())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await arbiter.read() == view(1)
        await arbiter.close()

    asyncio.run(read())
    assert register.end.is_set()
