"""Which of the properties of docs/consistency.md a history violates."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stratagem.consistency import Async, Bounded, Consistency, Sync
from tests.consistency.history import (
    Answered,
    Event,
    Gone,
    Leave,
    Read,
    Reading,
    Seen,
    Sent,
)


@dataclass(frozen=True)
class Violation:
    """A property, by its number in docs/consistency.md, and what violates it."""

    rule: str
    event: Event


@dataclass
class _Updates:
    """The updates of one worker that count, in its order.

    Attributes:
        steps: The step of each.
        synchronous: The steps of those that are synchronous.
        places: For each of these, how many updates there are up to it.
        sent: How many were sent so far.
        answered: How many were answered so far.
    """

    steps: list[int] = field(default_factory=list)
    synchronous: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    sent: int = 0
    answered: int = 0

    def add(self, step: int, consistency: Consistency) -> None:
        if isinstance(consistency, Sync) and self.synchronous[-1:] == [step]:
            # Sent again by a worker that was started again; it counts once.
            return
        self.steps.append(step)
        if isinstance(consistency, Sync):
            self.synchronous.append(step)
            self.places.append(len(self.steps))

    def up_to(self, step: int) -> int:
        """How many updates there are up to a synchronous step."""
        place = bisect_right(self.synchronous, step)
        return self.places[place - 1] if place else 0


@dataclass
class _Begun:
    """A read under way: for which step, and what was answered before it was sent.

    Attributes:
        leave: Leave for the step.
        answered: How many updates of each worker were answered.
        behind: As of `Reading`.
    """

    leave: Leave
    answered: list[int]
    behind: int | None


class Checker:
    """Goes through one history."""

    def __init__(self, history: Sequence[Event], num_workers: int) -> None:
        self._history = history
        self._num_workers = num_workers
        self._consistencies: dict[int, Consistency] = {}
        self._starts: dict[int, int] = {}
        self._updates = [_Updates() for _ in range(num_workers)]
        self._clocks = [0] * num_workers
        self._present = [True] * num_workers
        self._leaves: dict[int, Leave] = {}
        self._begun: dict[int, _Begun] = {}
        self._sent: dict[int, int] = {}
        self._contained = 0
        # At each event of an update, how many its worker has sent up to this one.
        self._places: dict[int, int] = {}
        self._place = 0
        self.reads = 0

    def violations(self) -> list[Violation]:
        """All violations, in the order in which they happened."""
        found = [*self._disagreements()]
        self._look_ahead()
        for place, event in enumerate(self._history):
            self._place = place
            found += self._look(event)
        return [*found, *self._wrong_sizes()]

    def _disagreements(self) -> Iterator[Violation]:
        """CHG-1: a step has one consistency."""
        for event in self._history:
            if isinstance(event, Leave):
                known = self._consistencies.setdefault(event.step, event.consistency)
                if known != event.consistency:
                    yield Violation("CHG-1", event)

    def _look_ahead(self) -> None:
        counted = {
            (event.worker, event.step)
            for event in self._history
            if isinstance(event, Answered) and event.counted
        }
        for place, event in enumerate(self._history):
            if not isinstance(event, Sent | Answered):
                continue
            updates = self._updates[event.worker]
            if isinstance(event, Sent) and (event.worker, event.step) in counted:
                updates.add(event.step, self._consistencies[event.step])
            # The next one may have been sent before this one was answered.
            self._places[place] = bisect_right(updates.steps, event.step)
        # A phase begins with the first step of a consistency, and behind steps that nobody took:
        # they were of a phase that was over before anybody came to it.
        start, before, last = 0, None, 0
        for step in sorted(self._consistencies):
            if self._consistencies[step] != before or step > last + 1:
                start, before = step, self._consistencies[step]
            self._starts[step], last = start, step

    def _look(self, event: Event) -> Iterator[Violation]:
        match event:
            case Leave():
                self._leaves[event.worker] = event
                self._present[event.worker] = True
                self._pass(event.worker, event.step - 1)
            case Reading():
                yield from self._reading(event)
            case Read():
                yield from self._read(event)
            case Sent():
                self._sent[event.worker] = event.step
                self._updates[event.worker].sent = self._places[self._place]
            case Answered():
                self._updates[event.worker].answered = self._places[self._place]
                self._pass(event.worker, event.step)
            case Gone():
                self._present[event.worker] = False

    def _pass(self, worker: int, step: int) -> None:
        self._clocks[worker] = max(self._clocks[worker], step)

    def _reading(self, event: Reading) -> Iterator[Violation]:
        """BND-1: whoever reads is at most so many steps ahead of the slowest."""
        leave = self._leaves[event.worker]
        answered = [updates.answered for updates in self._updates]
        self._begun[event.read] = _Begun(leave, answered, event.behind)
        # Who is taken for gone may still read under the leave that it had.
        if isinstance(leave.consistency, Bounded) and self._present[event.worker]:
            clocks = zip(self._clocks, self._present, strict=True)
            slowest = min(clock for clock, present in clocks if present)
            slowest = max(slowest, self._starts[leave.step] - 1)
            if leave.step - 1 - slowest > leave.consistency.steps:
                yield Violation("BND-1", event)

    def _read(self, event: Read) -> Iterator[Violation]:
        self.reads += 1
        begun = self._begun.pop(event.read)
        newest = 0
        for worker, seen in enumerate(event.seen):
            yield from self._seen(event, worker, seen, begun)
            if worker == event.worker and begun.behind not in (None, seen[1]):
                yield Violation("ASY-2", event)
            if seen[1] and isinstance(self._consistencies.get(seen[1]), Sync):
                newest = max(newest, seen[1])
        self._contained = max(self._contained, newest)
        yield from self._steps(event, newest, begun.leave)

    def _seen(self, event: Read, worker: int, seen: Seen, begun: _Begun) -> Iterator[Violation]:
        """ALL-1, ALL-2 and ALL-3, for the updates of one worker."""
        count, last = seen
        updates = self._updates[worker]
        steps = updates.steps
        if count > len(steps) or last != (steps[count - 1] if count else 0):
            yield Violation("ALL-1", event)
        elif count > updates.sent:
            yield Violation("ALL-3", event)
        answered = begun.answered[worker]
        if count < answered:
            at_once = not isinstance(self._consistencies[steps[answered - 1]], Sync)
            if at_once or steps[answered - 1] < begun.leave.step:
                yield Violation("ALL-2", event)

    def _steps(self, event: Read, newest: int, leave: Leave) -> Iterator[Violation]:
        """SYN-1 and SYN-2: which synchronous steps a read contains, and that wholly."""
        for updates, (count, _) in zip(self._updates, event.seen, strict=True):
            if count < updates.up_to(leave.step - 1):
                yield Violation("SYN-1", event)
            if count < updates.up_to(newest):
                yield Violation("SYN-2", event)
        # Who was started again may have contributed to the step before.
        again = self._sent.get(event.worker, 0) >= leave.step
        if leave.consistency == Sync() and newest >= leave.step and not again:
            yield Violation("SYN-1", event)

    def _wrong_sizes(self) -> Iterator[Violation]:
        """SYN-3: a step that was seen has as many contributions as close one."""
        sizes: Counter[int] = Counter()
        for updates in self._updates:
            sizes.update(updates.synchronous)
        last: dict[int, Event] = {}
        for event in self._history:
            if isinstance(event, Answered):
                last[event.step] = event
        for step, consistency in self._consistencies.items():
            if isinstance(consistency, Sync) and step <= self._contained:
                enough = consistency.replicas_to_aggregate or self._num_workers
                if sizes[step] != enough:
                    yield Violation("SYN-3", last[step])


def reads_by_consistency(history: Sequence[Event]) -> dict[type[Consistency], int]:
    """How many reads a history has of each consistency."""
    leaves: dict[int, Leave] = {}
    reads: dict[type[Consistency], int] = defaultdict(int, {Async: 0})
    for event in history:
        if isinstance(event, Leave):
            leaves[event.worker] = event
        elif isinstance(event, Read):
            reads[type(leaves[event.worker].consistency)] += 1
    return reads
