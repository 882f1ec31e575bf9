"""The arbiter of a simulation: a register that answers late, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVar

from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1.replication_pb2 import View
from tests.simulation.network import Network
from tests.simulation.server_run import require_alive
from tests.simulation.world import World

# As long as a call of a real one lasts before it is given up.
_PATIENCE_SECONDS = 1.0

Answer = TypeVar("Answer")


class Register:
    """The view of one task.

    Attributes:
        name: The arbiter in partitions.
        history: All views, in their order.
        wanted: The view that each replica has asked for last, until it is told an answer.
        asked: The views that replicas have asked for and that may still become the present one, by
            the name of who has asked.
    """

    def __init__(self, world: World, task: int) -> None:
        self.name = f"arbiter:{task}"
        self.history: list[View] = []
        self.asked: list[tuple[str, View]] = []
        self.wanted: dict[str, View] = {}
        self._world = world
        self._away_until = 0.0

    @property
    def view(self) -> View | None:
        """The present view."""
        return self.history[-1] if self.history else None

    @property
    def is_away(self) -> bool:
        """Whether it answers nobody."""
        return self._world.loop.time() < self._away_until

    def leave(self, seconds: float) -> None:
        """Answer nobody for a while."""
        self._away_until = self._world.loop.time() + seconds

    def replace(self, present: View | None, following: View) -> bool:
        """Replace the view, if it is the present one."""
        if self.view != present:
            return False
        expected = present.epoch + 1 if present else 1
        self._world.require(following.epoch == expected, f"{following} follows {present}")
        self.history.append(following)
        self._world.note(self.name, f"has the view {told(following)}")
        return True


class SimulatedArbiter:
    """How one replica asks.

    Args:
        network: Carries what it asks.
        register: Whom it asks.
        name: The replica.
    """

    def __init__(self, network: Network, register: Register, name: str) -> None:
        self._network, self._world = network, network.world
        self._register, self._name = register, name

    async def read(self) -> View | None:
        """Return the present view; raise as `Arbiter.read`."""
        require_alive()
        answer: asyncio.Future[View | None] = self._world.loop.create_future()
        return await self._exchange(answer, lambda: self._register.view)

    async def replace(self, present: View | None, following: View) -> bool:
        """Replace the present view; raise as `Arbiter.replace`."""
        require_alive()
        asked = self._name, _copied(following)
        before = _copied(present) if present is not None else None
        self._register.asked.append(asked)

        def replace() -> bool:
            return self._register.replace(before, asked[1])

        def forget() -> None:
            self._register.asked.remove(asked)

        answer: asyncio.Future[bool] = self._world.loop.create_future()
        self._register.wanted[self._name] = asked[1]
        granted = await self._exchange(answer, replace, forget)
        self._register.wanted.pop(self._name, None)
        return granted

    async def _exchange(
        self,
        answer: asyncio.Future[Answer],
        ask: Callable[[], Answer],
        arrived: Callable[[], None] = lambda: None,
    ) -> Answer:
        weather, world = self._world.weather, self._world

        def arrive() -> None:
            arrived()
            passes = self._network.passes(self._name, self._register, there=True)
            if self._register.is_away or not passes or world.strikes("view lost", weather.lost):
                return
            found = ask()
            back = self._network.passes(self._name, self._register, there=False)
            if back and not world.strikes("answer of the arbiter lost", weather.reply_lost):
                delay = self._network.delay("arbiter late")
                world.loop.call_later(delay, tell, found, context=Context())

        def tell(found: Answer) -> None:
            if not answer.done():
                answer.set_result(found)

        delay = self._network.delay("arbiter late")
        world.loop.call_later(delay, arrive, context=Context())
        try:
            return await asyncio.wait_for(answer, _PATIENCE_SECONDS)
        except asyncio.TimeoutError:
            raise UnavailableError("the simulated arbiter does not answer") from None

    async def close(self) -> None:
        """Hold nothing."""


def _copied(view: View) -> View:
    copied = View()
    copied.CopyFrom(view)
    return copied


def told(view: View) -> str:
    """Return a view for a trace."""
    parts = [f"{view.epoch}:"]
    for part in ("primary", "backup"):
        if view.HasField(part):
            replica = getattr(view, part)
            parts.append(f"{part} {replica.index} ({replica.instance.hex()[:4]})")
    return " ".join(parts)
