"""A queue of closures under any order of events, checked after each."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from stratagem._coordinator.closure_queue import (
    Abandon,
    Cancel,
    ClosureQueue,
    Dismiss,
    FailDependent,
    GiveUp,
    Order,
    Recall,
    Run,
)

WORKERS = 3
CAPACITY = 6
DEPTH = 2
DEEPEST = 4
MOST_LOSSES = 3


Tell = Callable[[int, BaseException], list[Order]]


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
        self.queue = ClosureQueue(CAPACITY, DEPTH, MOST_LOSSES)
        self._random = Random(self.seed)
        self._inputs: dict[int, set[int]] = {}
        self._on: dict[int, deque[int]] = {}
        self._leaving: set[int] = set()
        self._depths: dict[int, int] = {}
        self._staying: dict[int, int] = {}
        self._orders: deque[Order] = deque()
        self._first_error: BaseException | None = None
        self._losses: Counter[int] = Counter()

    def run(self, events: int) -> None:
        choices = [self._put] * 6 + [self._end] * 6 + [self._come, self._go] * 2
        choices += [self._fail, self._report, self._rebalance, self._leave]
        choices += [self._deepen]
        choices += [self._stay, self._spare] * 2
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
        unmet = [one for one in chosen if not self._there(one)]
        self._obey(self.queue.put(closure, unmet))

    def _end(self) -> None:
        closure = self._pick_running()
        if closure is None:
            return
        if self.queue.reporting and self._random.random() < 0.5:
            self._obey(self.queue.put_back(closure))
        else:
            self._leaves(closure, "finished")
            self._obey(self.queue.finished(closure))

    def _stay(self) -> None:
        closure = self._pick_running()
        if closure is not None:
            self._staying[closure] = self._take_off(closure)
            self._losses.pop(closure, None)
            self._obey(self.queue.stays(closure))

    def _spare(self) -> None:
        if self._staying:
            closure = self._random.choice([*self._staying])
            del self._staying[closure]
            self._leaves(closure, "finished")
            self._obey(self.queue.finished(closure))

    def _fail(self) -> None:
        closure = self._pick_running()
        if closure is not None:
            self._fails(closure)

    def _fails(self, closure: int, tell: Tell | None = None) -> None:
        error = Raised(closure)
        self._first_error = self._first_error or error
        self._leaves(closure, "failed")
        self._obey((tell or self.queue.failed)(closure, error))

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
        crashed = self._random.random() < 0.5
        had = self._on.pop(worker, deque())
        self._losses.update(had if crashed else ())
        self._depths.pop(worker, None)
        lost = [one for one, at in self._staying.items() if at == worker]
        for closure in lost:
            del self._staying[closure]
        self._obey(self.queue.worker_lost(worker, crashed))

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
            events += [self._stay, self._spare]
            self._random.choice(events)()
            self._check()
        error, orders = self.queue.end_report()
        self._obey(orders)
        assert self.queue.staying == self._staying.keys()
        assert self.queue.idle == (not self._staying)
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
            self._spare()
        while not self.queue.idle:
            self._end()
            self._spare()
            self._check()

    # What the queue wants done.

    def _obey(self, orders: list[Order]) -> None:
        # What obeying one order leads to comes after the others.
        first = not self._orders
        self._orders.extend(orders)
        while first and self._orders:
            self._obey_one(self._orders[0])
            self._orders.popleft()

    def _obey_one(self, order: Order) -> None:
        match order:
            case Run(closure, worker):
                self._runs(closure, worker)
            case Recall(closure, worker):
                assert closure in [*self._on[worker]][1:]
                self._give_back(closure, worker)
            case Abandon(closure):
                self._leaves(closure, "abandoned")
            case FailDependent(closure, Raised() as error):
                assert self.ended[error.args[0]] == "failed"
                self._leaves(closure, "starved")
            case GiveUp(closure, workers):
                assert self._losses[closure] == len(workers) == MOST_LOSSES
                self._fails(closure, self.queue.given_up)
            case Dismiss(worker):
                assert not self._on.pop(worker, None), "it has something to run"
                assert worker not in self._staying.values()
                self._leaving.remove(worker)
            case Cancel():
                raise AssertionError("no report is under way")

    def _runs(self, closure: int, worker: int) -> None:
        assert not any(closure in closures for closures in self._on.values())
        assert worker not in self._leaving
        company = [closure, *self._on[worker]]
        assert len(company) == 1 or not any(self._losses[one] for one in company)
        self._on[worker].append(closure)
        inputs = [one for one in self._inputs[closure] if not self._there(one)]
        if any(one in self.ended for one in inputs):
            self._fails(closure)
        elif inputs:
            self._take_off(closure)
            self._obey(self.queue.put_back(closure, inputs))

    def _give_back(self, closure: int, worker: int) -> None:
        if self._random.random() < 0.5:
            self._on[worker].remove(closure)
            self._obey(self.queue.put_back(closure))

    def _there(self, closure: int) -> bool:
        """Whether others can have a closure's value."""
        return closure in self._staying or self.ended.get(closure) == "finished"

    def _take_off(self, closure: int) -> int:
        """Takes a closure from its worker and returns that."""
        worker = next(one for one, closures in self._on.items() if closure in closures)
        self._on[worker].remove(closure)
        return worker

    def _leaves(self, closure: int, how: str) -> None:
        if any(closure in closures for closures in self._on.values()):
            self._take_off(closure)
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
        assert live == queue.in_flight + queue.queued + len(queue.staying)
        assert queue.idle == (live == 0)
        assert queue.error is self._first_error
        self._check_that_nobody_rests()

    def _check_that_nobody_rests(self) -> None:
        staying = self._on.keys() - self._leaving
        has_room = any(len(self._on[one]) < self._depths.get(one, DEPTH) for one in staying)
        running = {closure for closures in self._on.values() for closure in closures}
        ready = [
            closure
            for closure, inputs in self._inputs.items()
            if closure not in self.ended
            and closure not in self._staying
            and all(map(self._there, inputs))
        ]
        if any(self._losses[one] for one in {*ready, *running}):
            # One of them is to be alone on its worker.
            has_room = not all(self._on[one] for one in staying)
        if has_room and not self.queue.reporting:
            assert running.issuperset(ready), "a worker could run more"
