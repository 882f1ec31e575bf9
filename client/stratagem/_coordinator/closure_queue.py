"""Which closure runs where and when, and which error is reported.

Closures and workers are numbers here. Each method takes note of an event and returns what is to be
done about it, in this order. There is no thread, socket or clock: callers hold a lock, and wait for
what the properties say.

A closure waits for its inputs, then in the queue, then on a worker: in flight. A worker has some of
them, up to its depth, of which it runs the first, so that it need not wait for the next ones to
travel. A closure ends by `finished` or `failed`, or by an order that tells so.

In between its value may stay on its worker, where others can get it that wait for it: should the
worker be lost then, the closure runs again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TypeAlias


@dataclass(frozen=True)
class Run:
    """Send a closure to a worker, behind those that it has."""

    closure: int
    worker: int


@dataclass(frozen=True)
class Recall:
    """Ask a worker to give a closure back, unless it has begun it."""

    closure: int
    worker: int


@dataclass(frozen=True)
class Cancel:
    """Ask a worker to give a closure up, even if it has begun it."""

    closure: int
    worker: int


@dataclass(frozen=True)
class Abandon:
    """Tell threads that wait for a closure's value that the closure is cancelled."""

    closure: int


@dataclass(frozen=True)
class FailDependent:
    """Tell threads that wait for a closure's value that one which it depends on failed."""

    closure: int
    error: BaseException


@dataclass(frozen=True)
class GiveUp:
    """Tell threads that wait for a closure's value that it is not run again."""

    closure: int
    workers: tuple[int, ...]
    """Those that were lost with it."""


@dataclass(frozen=True)
class Dismiss:
    """Let a worker go that was to leave: it has nothing any more."""

    worker: int


Order: TypeAlias = Run | Recall | Cancel | Abandon | FailDependent | GiveUp | Dismiss


class Suspects:
    """Which closures workers had when they were lost, and how often.

    A worker that is lost may have begun any of several, and does not say any more which one. Each
    of them runs alone from then on, so that another loss is of that one.

    Args:
        most: How many workers may be lost with a closure; None for any number.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._workers: dict[int, tuple[int, ...]] = {}

    def __contains__(self, closure: int) -> bool:
        return closure in self._workers

    def __bool__(self) -> bool:
        return bool(self._workers)

    def blame(self, closures: Collection[int], worker: int) -> Mapping[int, tuple[int, ...]]:
        """Take note that a worker was lost with what it had.

        Returns:
            The closures that must not run again, each with the workers that were lost with it.
        """
        if self._most is None:
            return {}
        for closure in closures:
            self._workers[closure] = (*self._workers.get(closure, ()), worker)
        return {
            closure: self._workers.pop(closure)
            for closure in closures
            if len(self._workers[closure]) >= self._most
        }

    def clear(self, *closures: int) -> None:
        if self._workers:
            for closure in closures:
                self._workers.pop(closure, None)

    def may_join(self, closure: int, load: Mapping[int, None]) -> bool:
        """Return whether a worker may have a closure behind those that it has."""
        return closure not in self._workers and next(iter(load)) not in self._workers


class UnmetInputs:
    """Which closures wait for which."""

    def __init__(self) -> None:
        self._inputs: dict[int, set[int]] = {}
        self._waiting: defaultdict[int, list[int]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._inputs)

    def add(self, closure: int, inputs: Iterable[int]) -> None:
        self._inputs[closure] = set(inputs)
        for needed in self._inputs[closure]:
            self._waiting[needed].append(closure)

    def meet(self, value: int) -> Iterator[int]:
        """Yield the closures that waited for nothing but this value."""
        for closure in self._waiting.pop(value, ()):
            # It may have failed by another input.
            unmet = self._inputs.get(closure, set())
            unmet.discard(value)
            if not unmet and self._inputs.pop(closure, None) is not None:
                yield closure

    def fail(self, value: int) -> Iterator[int]:
        """Yield the closures that will never have all inputs without this value."""
        for closure in self._waiting.pop(value, ()):
            if self._inputs.pop(closure, None) is not None:
                yield closure
                yield from self.fail(closure)

    def clear(self) -> list[int]:
        closures = [*self._inputs]
        self._inputs.clear()
        self._waiting.clear()
        return closures


class ClosureQueue:
    """The closures of a coordinator that have not ended.

    Args:
        capacity: How many closures may be on no worker before it is full.
        depth: How many closures a worker may have, until `deepen` says otherwise.
        most_losses: How many workers may be lost that had a closure until that is given up; None
            for any number.

    Spec: COO-6 to COO-10, ERR-1 to ERR-7, FLT-2 to FLT-4, FLT-14.
    """

    def __init__(self, capacity: int, depth: int, most_losses: int | None = None) -> None:
        self.error: BaseException | None = None
        """The first error since the last report."""
        self.reporting = False
        """Whether the closures in flight have been told to end."""
        self._capacity = capacity
        self._depth = depth
        self._suspects = Suspects(most_losses)
        self._waiting = UnmetInputs()
        self._queued: deque[int] = deque()
        self._on_worker: dict[int, dict[int, None]] = {}
        self._worker_of: dict[int, int] = {}
        self._staying: dict[int, int] = {}
        self._recalled: set[int] = set()
        self._leaving: dict[int, dict[int, None]] = {}
        # Those among them that stop by themselves, and may come back.
        self._retiring: set[int] = set()
        self._depths: dict[int, int] = {}

    @property
    def full(self) -> bool:
        """Whether `put` should wait. Spec: COO-6."""
        return len(self._queued) + len(self._waiting) >= self._capacity

    @property
    def idle(self) -> bool:
        """Whether all closures have ended. Spec: COO-9, COO-10."""
        return not (self._queued or self._worker_of or self._waiting or self._staying)

    @property
    def in_flight(self) -> int:
        """How many closures workers have."""
        return len(self._worker_of)

    @property
    def staying(self) -> Collection[int]:
        """The closures whose values are on their workers alone."""
        return self._staying.keys()

    @property
    def queued(self) -> int:
        """How many closures are on no worker."""
        return len(self._queued) + len(self._waiting)

    @property
    def workers(self) -> Collection[int]:
        return self._on_worker.keys()

    @property
    def leaving(self) -> Collection[int]:
        """The workers that are to leave and have something yet that is needed."""
        return self._leaving.keys()

    def closures_of(self, worker: int) -> Collection[int]:
        """Return what a worker has, the one that it runs first."""
        return self._load(worker).keys()

    # Closures come and end.

    def put(self, closure: int, inputs: Collection[int] = ()) -> list[Order]:
        """Add a closure; abandon it if there is an error to report. Spec: ERR-5.

        Args:
            closure: Its number, which must be new.
            inputs: Closures that have not ended, whose values it takes.
        """
        if self.error:
            return [Abandon(closure)]
        if inputs:
            self._waiting.add(closure, inputs)
            return []
        self._queued.append(closure)
        return [*self._assign()]

    def stays(self, closure: int) -> list[Order]:
        """Take note that a closure has a value, which is on its worker alone."""
        self._staying[closure] = self._worker_of[closure]
        self._take_from_worker(closure)
        self._suspects.clear(closure)
        self._queued.extend(self._waiting.meet(closure))
        return [*self._assign()]

    def finished(self, closure: int) -> list[Order]:
        """Take note that a closure has a value, or had one while it was needed."""
        if self._staying.pop(closure, None) is None:
            self._take_from_worker(closure)
            self._suspects.clear(closure)
        self._queued.extend(self._waiting.meet(closure))
        return [*self._assign()]

    def failed(self, closure: int, error: BaseException) -> list[Order]:
        """Take note that a closure raised; keep the first such error.

        Spec: ERR-1 to ERR-3.
        """
        self._take_from_worker(closure)
        return self.given_up(closure, error)

    def given_up(self, closure: int, error: BaseException) -> list[Order]:
        """As `failed`, for a closure that an order said is given up."""
        self._suspects.clear(closure)
        self.fault(error)
        starved = [FailDependent(one, error) for one in self._waiting.fail(closure)]
        return [*starved, *self._assign()]

    def put_back(self, closure: int, inputs: Collection[int] = ()) -> list[Order]:
        """Take back a closure that its worker dropped, or gave up as it was told.

        Args:
            closure: The closure.
            inputs: As of `put`, if it could not run for lack of them.

        Spec: ERR-7, FLT-2, FLT-14.
        """
        recalled = closure in self._recalled
        self._take_from_worker(closure)
        if self.reporting or (self.error and not recalled):
            return [*self._abandon(closure), *self._assign()]
        if inputs:
            self._waiting.add(closure, inputs)
            return [*self._assign()]
        # One that was recalled has waited already.
        (self._queued.appendleft if recalled else self._queued.append)(closure)
        return [*self._assign()]

    # Workers come and go.

    def worker_ready(self, worker: int) -> list[Order]:
        """Take note that a worker is there, which is not about to leave.

        Spec: FLT-4.
        """
        self._on_worker.setdefault(worker, {})
        return [*self._assign()]

    def worker_lost(self, worker: int, crashed: bool = False) -> list[Order]:
        """Take back what a worker had; others run it. Spec: FLT-2.

        Args:
            worker: The worker.
            crashed: Whether one of its closures may have ended it.
        """
        closures = [*self._load(worker)]
        for closure in closures:
            self._take_from_worker(closure)
        doomed = self._suspects.blame(closures, worker) if crashed else {}
        for closure in [one for one, at in self._staying.items() if at == worker]:
            del self._staying[closure]
            closures.append(closure)
        self._on_worker.pop(worker, None)
        self._depths.pop(worker, None)
        if worker in self._retiring:
            self._retiring.discard(worker)
            del self._leaving[worker]
        if self.error:
            abandoned = [order for lost in closures for order in self._abandon(lost)]
            return [*abandoned, *self._assign()]
        self._queued.extend(one for one in closures if one not in doomed)
        given_up = [GiveUp(closure, workers) for closure, workers in doomed.items()]
        return [*given_up, *self._assign()]

    def deepen(self, worker: int, depth: int) -> None:
        self._depths[worker] = depth

    def worker_leaves(self, worker: int) -> list[Order]:
        """Give a worker nothing any more, and dismiss it once nothing needs it.

        What it runs ends there; what waits behind that is recalled.
        """
        self._retiring.discard(worker)
        load = self._leaving.setdefault(worker, self._on_worker.pop(worker, {}))
        behind = [*load][1:]
        recalled = [one for one in behind if one not in self._recalled]
        self._recalled.update(recalled)
        return [*(Recall(one, worker) for one in recalled), *self._assign()]

    def worker_retires(self, worker: int) -> list[Order]:
        """Give a worker nothing any more that is about to stop, until it is lost and comes back.

        It gives back what waits there by itself.
        """
        if worker in self._on_worker:
            self._retiring.add(worker)
            self._leaving[worker] = self._on_worker.pop(worker)
        return [*self._assign()]

    @property
    def lopsided(self) -> bool:
        """Whether `rebalance` has something to do."""
        return bool(self._recallable())

    def rebalance(self) -> list[Order]:
        """Recall closures that wait behind others while some workers have nothing."""
        recalled = self._recallable()
        self._recalled.update(recalled)
        return [Recall(closure, self._worker_of[closure]) for closure in recalled]

    def _recallable(self) -> list[int]:
        # What a worker has alone it has begun.
        if self._queued or self.reporting or len(self._worker_of) < 2:
            return []
        if all(self._on_worker.values()):
            return []
        asked = {self._worker_of[closure] for closure in self._recalled}
        idle = sum(not load for load in self._on_worker.values()) - len(asked)
        loads = [load for one, load in self._on_worker.items() if one not in asked]
        loads.sort(key=len, reverse=True)
        return [one for load in loads[: max(idle, 0)] for one in [*load][(len(load) + 1) // 2 :]]

    # An error is reported.

    def fault(self, error: BaseException) -> None:
        """Keep an error for the next report, unless there is one. Spec: ERR-2."""
        self.error = self.error or error

    def begin_report(self) -> list[Order]:
        """Tell all closures in flight to end; `end_report` when none is left.

        Spec: ERR-4.
        """
        self.reporting = True
        return [Cancel(closure, at) for closure, at in self._worker_of.items()]

    def end_report(self) -> tuple[BaseException, list[Order]]:
        """Empty the queue and return the error, which is kept no more.

        Spec: ERR-4, ERR-6.
        """
        error, self.error, self.reporting = self.error, None, False
        assert error is not None, "a report without an error"
        closures = [*self._queued, *self._waiting.clear()]
        self._queued.clear()
        self._suspects.clear(*closures)
        return error, [Abandon(closure) for closure in closures]

    def _assign(self) -> Iterator[Order]:
        if self._leaving:
            yield from self._dismiss()
        while self._queued and not self.reporting:
            worker = self._least_loaded(self._queued[0])
            if worker is None:
                return
            closure = self._queued.popleft()
            self._on_worker[worker][closure] = None
            self._worker_of[closure] = worker
            yield Run(closure, worker)

    def _least_loaded(self, closure: int) -> int | None:
        """Return the worker of the next closure; None if no worker may have more."""
        found, least = None, inf
        suspects = self._suspects if self._suspects else None
        for worker, closures in self._on_worker.items():
            count = len(closures)
            if suspects and count and not suspects.may_join(closure, closures):
                continue
            if count < least and count < self._depths.get(worker, self._depth):
                found, least = worker, count
        return found

    def _dismiss(self) -> Iterator[Order]:
        needed = self._staying.values()
        leaving = self._leaving.items()
        idle = [one for one, load in leaving if not load and one not in self._retiring]
        for worker in [one for one in idle if one not in needed]:
            del self._leaving[worker]
            yield Dismiss(worker)

    def _load(self, worker: int) -> dict[int, None]:
        return self._on_worker.get(worker, self._leaving.get(worker, {}))

    def _take_from_worker(self, closure: int) -> None:
        del self._load(self._worker_of.pop(closure))[closure]
        self._recalled.discard(closure)

    def _abandon(self, closure: int) -> Iterable[Order]:
        self._suspects.clear(closure)
        yield Abandon(closure)
        for dependent in self._waiting.fail(closure):
            yield Abandon(dependent)
