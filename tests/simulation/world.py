"""What all parts of one run share: its chance, its time, its faults and its trace."""

from __future__ import annotations

import random
from asyncio import AbstractEventLoop
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.simulation.virtual_loop import VirtualLoop

# Afterwards no faults happen any more, and whoever can still reach its end has to reach it.
CALM_AT = 45.0


@dataclass(frozen=True)
class Weather:
    """How likely faults are in one run.

    Attributes:
        lost: A request never arrives.
        doubled: A request arrives a second time, at another moment.
        late: A request or a reply takes seconds; later ones overtake it.
        reply_lost: A request is answered, and its client never hears of it.
        cut_off: The connection breaks while the server works on the call.
        slow_work: Work on tensors lets others have their turn, as in a thread.
        slow_disk: The disk takes up to seconds to write.
        failing_disk: What was written is not on disk, and the server hears of that.
        overwritten: A client overwrites memory that it shares with a server, which still works on
            a request with tensors there.
        storms: Partitions, pauses and crashes; by name, how many there are each minute.
    """

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    reply_lost: float = 0.0
    cut_off: float = 0.0
    slow_work: float = 0.0
    slow_disk: float = 0.0
    failing_disk: float = 0.0
    overwritten: float = 0.0
    storms: dict[str, float] = field(default_factory=dict)


STORMS = ("partition", "pause", "crash")
# That a server ends and starts anew is for programs that expect it to have forgotten everything.
RESTART = "restart"


def weather_of(chance: random.Random, storms: tuple[str, ...] = STORMS) -> Weather:
    """Choose the weather of a run: a few kinds of faults, from rare to frequent."""

    def likely(most: float) -> float:
        return chance.choice((0.0, 0.1, 0.4, 1.0)) * most

    return Weather(
        lost=likely(0.15),
        doubled=likely(0.2),
        late=likely(0.2),
        reply_lost=likely(0.15),
        cut_off=likely(0.15),
        slow_work=likely(0.8),
        slow_disk=likely(0.5),
        failing_disk=likely(0.1),
        overwritten=likely(1.0),
        storms={name: likely(12.0) for name in storms},
    )


@dataclass(frozen=True)
class Shelter:
    """What a run is spared, so that what fails in spite of that is easier to understand.

    Attributes:
        without: Faults that do not happen.
        calm_at: When faults cease, in seconds.
    """

    without: frozenset[str] = frozenset()
    calm_at: float = CALM_AT

    def __str__(self) -> str:
        without = f" --without {','.join(sorted(self.without))}" if self.without else ""
        return without + (f" --calm-at {self.calm_at:g}" if self.calm_at < CALM_AT else "")


OPEN_AIR = Shelter()


class Happening(NamedTuple):
    """A line of a trace: when, to whom, and what."""

    time: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.time:10.4f}  {self.who:<12}  {self.what}"


class World:
    """One run.

    Args:
        seed: Decides what happens.
        shelter: What does not happen all the same.

    Attributes:
        seed: The seed.
        chance: Decides everything that is not decided by the code under test.
        loop: Runs it.
        weather: How likely faults are.
        faults: How often each fault has happened.
        effects: How often servers have done what only faults make them do.
        trace: What has happened.
        violations: What must not have happened.
    """

    def __init__(self, seed: int, shelter: Shelter = OPEN_AIR) -> None:
        self.seed, self._shelter = seed, shelter
        self.chance = random.Random(seed)
        self.loop = VirtualLoop()
        self.weather = Weather()
        self.faults: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.trace: list[Happening] = []
        self.violations: list[str] = []
        self.loop.set_exception_handler(self._complain)

    def _complain(self, loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note what a real loop would write to the log, for instance of an error without heir."""
        # Tasks of a server that has ended are dropped in the midst of what they did.
        if "exception" in context:
            self.require(False, f"{context['message']}: {context['exception']!r}")

    @property
    def is_calm(self) -> bool:
        """Whether the time of faults is over."""
        return self.loop.time() >= self._shelter.calm_at

    def note(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(Happening(self.loop.time(), who, what))

    def strikes(self, fault: str, likely: float) -> bool:
        """Return whether a fault happens now, and count it."""
        if likely <= 0 or self.chance.random() >= likely:
            return False
        happens = not self.is_calm and fault not in self._shelter.without
        if happens:
            self.faults[fault] += 1
        return happens

    def require(self, holds: bool, what: str) -> None:
        """Note a violation unless something holds."""
        if not holds:
            self.note("checker", what)
            self.violations.append(what)
