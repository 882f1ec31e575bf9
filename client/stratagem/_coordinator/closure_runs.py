"""Running closures on workers as the queue orders, and applying their outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

from stratagem._coordinator.closure import Closure, Result
from stratagem._coordinator.monitor import Monitor
from stratagem._coordinator.outcomes import (
    RunOutcome,
    cancellation,
    deadly,
    input_failure,
    outcome_of_failure,
)
from stratagem._coordinator.queue.closure_queue import ClosureQueue
from stratagem._coordinator.queue.orders import (
    Abandon,
    Cancel,
    Dismiss,
    FailDependent,
    GiveUp,
    Order,
    Recall,
    Run,
)
from stratagem._coordinator.recurring import Rebalancing
from stratagem._coordinator.workers.remote_worker import RemoteWorker
from stratagem._coordinator.workers.roster import Roster
from stratagem._worker_client.closure_failure import ClosureAnswer
from stratagem_proto.v1.session_pb2 import ClosureIdentity


class ClosureRuns:
    """Carries out the queue's orders and ends closures. Used under the lock.

    Args:
        monitor: The lock, which callbacks of workers take here.
        rebalancing: Asked to call `rebalance` where workers have unequal shares.
        on_end: Called with the identity of each closure that ends.
    """

    def __init__(
        self,
        queue: ClosureQueue,
        roster: Roster,
        monitor: Monitor,
        rebalancing: Rebalancing,
        on_end: Callable[[ClosureIdentity], None],
    ) -> None:
        self.ended = 0
        self._queue = queue
        self._roster = roster
        self._monitor = monitor
        self._rebalancing = rebalancing
        self._rebalances = False
        self._on_end = on_end
        self._closures: dict[int, Closure] = {}
        self._orders: deque[Order] = deque()
        self._obeying = False

    def __getitem__(self, number: int) -> Closure:
        return self._closures[number]

    def name_of(self, number: int) -> str:
        """Return the name of a closure, also of one that has ended."""
        closure = self._closures.get(number)
        return closure.name if closure else f"function {number}"

    def expect(self, closure: Closure) -> None:
        """Add a closure that was scheduled."""
        self._closures[closure.number] = closure
        for one in closure.inputs:
            one.users += 1

    def abort(self) -> None:
        """Give up all closures."""
        for closure in self._closures.values():
            closure.result.abort()
        self._closures.clear()

    def rebalance(self) -> None:
        """Let workers with little to run have closures of those with much."""
        self._rebalances = False
        self.obey(self._queue.rebalance())

    def obey(self, orders: Iterable[Order]) -> None:
        """Carry out what the queue orders, after what it has ordered before."""
        # What obeying one order leads to comes after the others: workers get closures in the order
        # in which the queue gives them.
        self._orders.extend(orders)
        if self._obeying:
            return
        self._obeying = True
        try:
            while self._orders:
                self._obey_one(self._orders.popleft())
        finally:
            self._obeying = False
        self._monitor.wake()
        if self._queue.lopsided and not self._rebalances:
            self._rebalances = True
            self._rebalancing.ask()

    def _obey_one(self, order: Order) -> None:
        if isinstance(order, Abandon):
            self.end(order.closure).result.fail(cancellation())
        elif isinstance(order, FailDependent):
            closure = self.end(order.closure)
            closure.result.fail(input_failure(closure, order.error))
        elif isinstance(order, GiveUp):
            closure = self.end(order.closure)
            error = deadly(closure, order.workers)
            closure.result.fail(error)
            self.obey(self._queue.given_up(order.closure, error))
        elif isinstance(order, Dismiss):
            self._roster.dismiss(order.worker)
        # A connection that broke meanwhile has taken some closures back.
        elif order.closure in self._queue.closures_of(order.worker):
            self._instruct(order)

    def _instruct(self, order: Run | Recall | Cancel) -> None:
        worker = self._roster.there[order.worker]
        if not isinstance(order, Run):
            worker.cancel(order.closure, interrupt=isinstance(order, Cancel))
            return
        closure = self[order.closure]
        if closure.failure is not None:
            self._fail(closure, input_failure(closure, closure.failure))
        elif unmet := closure.unmet:
            # Their worker was lost while this closure was in the queue.
            self.obey(self._queue.put_back(closure.number, unmet))
        else:
            worker.run(closure, _Run(self, worker, closure))

    def _fail(self, closure: Closure, error: BaseException) -> None:
        """End a closure with an error."""
        self.end(closure.number).result.fail(error)
        self.obey(self._queue.failed(closure.number, error))

    def end(self, number: int) -> Closure:
        """Remove a closure and return it, whatever its outcome."""
        self.ended += 1
        closure = self._closures.pop(number)
        self._on_end(closure.identity)
        for one in closure.inputs:
            one.users -= 1
            self._end_unneeded(one)
        return closure

    def _end_unneeded(self, result: Result) -> None:
        """End the closure of a result that stays on its worker and nobody needs."""
        stays = result.closure in self._queue.staying
        if stays and not result.needed and not result.copying:
            self.end(result.closure)
            self.obey(self._queue.finished(result.closure))

    def _take_outcome(self, worker: RemoteWorker, closure: Closure, outcome: RunOutcome) -> None:
        # Another worker may have it by now, or gets it when the loss is told.
        if self._roster.there.get(worker.index) is worker and not outcome.lost:
            self._queue.deepen(worker.index, worker.ended())
            self._apply_outcome(worker, closure, outcome)

    def _apply_outcome(self, worker: RemoteWorker, closure: Closure, outcome: RunOutcome) -> None:
        queue, number = self._queue, closure.number
        if outcome.gave_up:
            self.obey(queue.put_back(number))
        elif outcome.lacking:
            self._provide(worker, closure)
        elif outcome.error is not None:
            self._fail(closure, outcome.error)
        elif outcome.answer.staying_bytes and closure.result.needed:
            self._keep_there(worker, closure)
        else:
            if outcome.answer.staying_bytes:
                worker.drop(closure)
            self._succeed(worker, closure, outcome.answer)

    def _succeed(self, worker: RemoteWorker, closure: Closure, answer: ClosureAnswer) -> None:
        self.end(closure.number).result.succeed(answer.payload, worker.name)
        self.obey(self._queue.finished(closure.number))

    def _keep_there(self, worker: RemoteWorker, closure: Closure) -> None:
        """Keep a result on its worker, and copy it if the program wants it."""
        worker.keep(closure)
        self.obey(self._queue.stays(closure.number))
        if closure.result.wanted:
            self._copy(worker, closure)

    def _copy(self, worker: RemoteWorker, closure: Closure) -> None:
        future = worker.send_back(closure)
        future.add_done_callback(partial(self._receive, worker, closure))

    def _receive(
        self, worker: RemoteWorker, closure: Closure, future: Future[ClosureAnswer]
    ) -> None:
        with self._monitor:
            there = self._roster.there.get(worker.index) is worker
            # Otherwise the loss is told, and the closure runs again.
            if there and future.exception() is None:
                self._succeed(worker, closure, future.result())

    def _provide(self, worker: RemoteWorker, closure: Closure) -> None:
        """Send a worker, by way of this process, what it could not copy itself."""
        worker.provide_anew(closure)
        for result in closure.inputs:
            source, result.direct = result.source, False
            if isinstance(source, RemoteWorker) and not result.here:
                self._copy(source, self._closures[result.closure])
        self.obey(self._queue.put_back(closure.number, closure.unmet))


class _Run:
    """One run of a closure: the reply of its worker, as `Reply` says.

    A future for each would be much of what the coordinator does for an empty one.
    """

    __slots__ = ("_closure", "_runs", "_worker")

    def __init__(self, runs: ClosureRuns, worker: RemoteWorker, closure: Closure) -> None:
        self._runs, self._worker, self._closure = runs, worker, closure

    def set_running_or_notify_cancel(self) -> None:
        """Do nothing: nobody asks whether a run has begun."""

    def set_result(self, answer: ClosureAnswer) -> None:
        with self._runs._monitor:
            self._runs._take_outcome(self._worker, self._closure, RunOutcome(answer))

    def set_exception(self, error: BaseException) -> None:
        with self._runs._monitor:
            outcome = outcome_of_failure(error, self._worker, self._closure)
            self._runs._take_outcome(self._worker, self._closure, outcome)
