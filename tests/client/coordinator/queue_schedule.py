"""A queue of closures under any order of events, checked after each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from stratagem._coordinator.closure_queue import ClosureQueue
from stratagem._coordinator.orders import (
    Abandon,
    Cancel,
    Dismiss,
    Order,
    Recall,
    Run,
    Starve,
)

WORKERS = 3
CAPACITY = 6
DEPTH = 2
DEEPEST = 4


class Raised(Exception):
    """What a closure raises, by its number."""


@dataclass
class QueueSchedule:
    """Events drawn from a seed, and what became of each closure.

    Attributes:
        seed: What the events are drawn from.
        ended: How each closure ended, once.
        reports: The error of each report.
        expected: The error that each report should have had.
    """

    seed: int
    ended: dict[int, str] = field(default_factory=dict)
    reports: list[BaseException] = field(default_factory=list)
    expected: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = ClosureQueue(CAPACITY, DEPTH)
        self._random = Random(self.seed)
        self._inputs: dict[int, set[int]] = {}
        self._on: dict[int, deque[int]] = {}
        self._leaving: set[int] = set()
        self._depths: dict[int, int] = {}
        self._first_error: BaseException | None = None

    def run(self, events: int) -> None:
        choices = [self._put] * 6 + [self._end] * 6 + [self._come, self._go] * 2
        choices += [self._fail, self._report, self._rebalance, self._leave]
        choices += [self._deepen]
        for _ in range(events):
            self._random.choice(choices)()
            self._check()
        self._wind_up()

    # Events.

    def _put(self) -> None:
        if self.queue.full:
            return
        closure = len(self._inputs)
        live = [other for other in self._inputs if other not in self.ended]
        count = self._random.choice([0, 0, 0, 1, 2])
        chosen = self._random.sample(live, min(count, len(live)))
        self._inputs[closure] = set(chosen)
        self._obey(self.queue.put(closure, chosen))

    def _end(self) -> None:
        closure = self._pick_running()
        if closure is None:
            return
        if self.queue.reporting and self._random.random() < 0.5:
            self._obey(self.queue.put_back(closure))
        else:
            self._leaves(closure, "finished")
            self._obey(self.queue.finished(closure))

    def _fail(self) -> None:
        closure = self._pick_running()
        if closure is None:
            return
        error = Raised(closure)
        self._first_error = self._first_error or error
        self._leaves(closure, "failed")
        self._obey(self.queue.failed(closure, error))

    def _come(self) -> None:
        worker = self._random.randrange(WORKERS)
        if worker not in self._leaving:
            self._on.setdefault(worker, deque())
            self._obey(self.queue.worker_ready(worker))

    def _deepen(self) -> None:
        worker = self._random.choice([*self._on] or [None])
        if worker is None or worker in self._leaving:
            return
        self._depths[worker] = self._random.randint(1, DEEPEST)
        self.queue.deepen(worker, self._depths[worker])
        self._obey(self.queue.worker_ready(worker))

    def _go(self) -> None:
        worker = self._random.randrange(WORKERS)
        self._on.pop(worker, None)
        self._depths.pop(worker, None)
        self._obey(self.queue.worker_lost(worker))

    def _leave(self) -> None:
        worker = self._random.randrange(WORKERS)
        self._leaving.add(worker)
        self._obey(self.queue.worker_leaves(worker))

    def _report(self) -> None:
        if not self.queue.error or self.queue.reporting:
            return
        running = {closure for closures in self._on.values() for closure in closures}
        told = self.queue.begin_report()
        assert {order.closure for order in told if isinstance(order, Cancel)} == running
        self._finish_report()

    def _finish_report(self) -> None:
        while self.queue.in_flight:
            events = [self._end, self._fail, self._come, self._go, self._leave]
            self._random.choice(events)()
            self._check()
        error, orders = self.queue.end_report()
        self._obey(orders)
        assert self.queue.idle
        self.reports.append(error)
        assert self._first_error
        self.expected.append(self._first_error)
        self._first_error = None

    def _rebalance(self) -> None:
        self._obey(self.queue.rebalance())

    def _wind_up(self) -> None:
        """Lets all closures end with workers that stay."""
        self._report()
        while not self._on.keys() - self._leaving:
            self._come()
            self._end()
        while not self.queue.idle:
            self._end()
            self._check()

    # What the queue wants done.

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Run(closure, worker):
                    self._runs(closure, worker)
                case Recall(closure, worker):
                    assert closure in [*self._on[worker]][1:]
                    self._give_back(closure, worker)
                case Abandon(closure):
                    self._leaves(closure, "abandoned")
                case Starve(closure, Raised() as error):
                    assert self.ended[error.args[0]] == "failed"
                    self._leaves(closure, "starved")
                case Dismiss(worker):
                    assert not self._on.pop(worker, None), "it has something to run"
                    self._leaving.remove(worker)
                case Cancel():
                    raise AssertionError("no report is under way")

    def _runs(self, closure: int, worker: int) -> None:
        assert not any(closure in closures for closures in self._on.values())
        assert worker not in self._leaving
        assert all(self.ended[i] == "finished" for i in self._inputs[closure])
        self._on[worker].append(closure)

    def _give_back(self, closure: int, worker: int) -> None:
        if self._random.random() < 0.5:
            self._on[worker].remove(closure)
            self._obey(self.queue.put_back(closure))

    def _leaves(self, closure: int, how: str) -> None:
        for closures in self._on.values():
            if closure in closures:
                closures.remove(closure)
        assert closure not in self.ended, "a closure ends once"
        self.ended[closure] = how

    def _pick_running(self) -> int | None:
        heads = [closures[0] for closures in self._on.values() if closures]
        return self._random.choice(heads) if heads else None

    # What holds at any time.

    def _check(self) -> None:
        queue = self.queue
        for worker, closures in self._on.items():
            assert list(queue.closures_of(worker)) == list(closures)
            assert len(closures) <= DEEPEST
        live = len(self._inputs) - len(self.ended)
        assert queue.leaving == self._leaving
        assert live == queue.in_flight + queue.queued
        assert queue.idle == (live == 0)
        assert queue.error is self._first_error
        self._check_that_nobody_rests()

    def _check_that_nobody_rests(self) -> None:
        staying = self._on.keys() - self._leaving
        has_room = any(
            len(self._on[one]) < self._depths.get(one, DEPTH) for one in staying
        )
        in_flight = sum(map(len, self._on.values()))
        ready = [
            closure
            for closure, inputs in self._inputs.items()
            if closure not in self.ended
            and all(self.ended.get(i) == "finished" for i in inputs)
        ]
        if has_room and not self.queue.reporting:
            assert len(ready) == in_flight, "a worker could run more"
