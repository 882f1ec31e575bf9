"""The shell of the queue of closures: its lock, its waits, and the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial

from stratagem._coordinator.attendant import Attendant, Events
from stratagem._coordinator.closure import Closure
from stratagem._coordinator.closure_queue import ClosureQueue
from stratagem._coordinator.endings import (
    Ending,
    cancellation,
    ending_of,
    input_failure,
)
from stratagem._coordinator.orders import (
    Abandon,
    Cancel,
    Order,
    Recall,
    Run,
    Starve,
)
from stratagem._coordinator.rebalancing import Rebalancing
from stratagem._coordinator.remote_worker import Connect, RemoteWorker
from stratagem_proto.errors import CancelledError, StratagemError

# How many closures a worker has, so that it need not wait for the next one.
DEPTH = 2


class Dispatch:
    """Sends closures to workers and takes note of how they end. Thread-safe.

    Everything happens under one lock, in the thread that brings the news: that of the
    program for what it schedules, a connection's for what its worker answers.

    Args:
        workers: The indices of the workers.
        connect: Connects to one.
        capacity: How many closures may wait.
    """

    def __init__(self, workers: Iterable[int], connect: Connect, capacity: int) -> None:
        self._queue = ClosureQueue(capacity, DEPTH)
        self._closures: dict[int, Closure] = {}
        self._connected: dict[int, RemoteWorker] = {}
        self._refused: set[int] = set()
        self._ended = 0
        self._changed = threading.Condition()
        self._entry = threading.Lock()
        self._closed = False
        self._rebalances = False
        self._rebalancing = Rebalancing(self._rebalance)
        self._attendants = {
            index: Attendant(
                index,
                connect,
                Events(self._welcome, partial(self._refuse, index), self._give_up),
            )
            for index in workers
        }

    def start(self, delays: Iterable[float]) -> None:
        """Connects to the workers, after so many seconds each. Spec: FLT-12."""
        pairs = zip(self._attendants.values(), delays, strict=True)
        for attendant, delay in pairs:
            attendant.start(delay)
        self._rebalancing.start()

    def schedule(self, closure: Closure) -> None:
        """Takes a closure; waits while the queue is full. Spec: COO-6, ERR-4, ERR-5."""
        with self._entry, self._changed:
            self._wait(lambda: bool(self._queue.error) or not self._queue.full)
            self._closures[closure.number] = closure
            self._put(closure)
            self._report_error()

    def join(self) -> None:
        """Waits until all closures have ended. Spec: COO-9, ERR-4."""
        with self._entry, self._changed:
            self._wait(lambda: bool(self._queue.error) or self._queue.idle)
            self._report_error()

    def done(self) -> bool:
        """Returns whether all closures have ended. Spec: COO-10, ERR-4."""
        with self._changed:
            self._report_error()
            return self._queue.idle

    def release(self, handles: Sequence[int]) -> None:
        """Lets workers forget what nothing names any more."""
        with self._changed:
            for worker in self._connected.values():
                worker.release(handles)

    def ended(self) -> int | None:
        """Returns how many closures have ended so far; None if none is left."""
        with self._changed:
            return None if self._queue.idle else self._ended

    def state(self) -> str:
        """Returns where everything stands, for a person. Spec: FLT-13."""
        with self._changed:
            lines = map(self._state_of, self._attendants)
            return f"{self._queue.queued} functions wait; " + "; ".join(lines)

    def close(self) -> None:
        """Gives up everything, soon. May be called anywhere, and again."""
        for attendant in self._attendants.values():
            attendant.close()
        self._rebalancing.close()

    # What the program waits for. All that follows is done under the lock.

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._closed or condition())
        if self._closed:
            raise CancelledError(
                "the coordinator is closed, because the program ends; schedule "
                "functions before"
            )

    def _put(self, closure: Closure) -> None:
        failed = next((one for one in closure.inputs if one._error), None)
        if failed is not None:
            assert failed._error
            error = input_failure(closure, failed._error)
            self._queue.fault(error)
            self._end(closure.number).fail(error)
            return
        unmet = [one._closure for one in closure.inputs if one._payload is None]
        self._obey(self._queue.put(closure.number, unmet))

    def _report_error(self) -> None:
        queue = self._queue
        if not queue.error:
            return
        if not queue.reporting:
            self._obey(queue.begin_report())
        # Another thread may come first.
        self._wait(lambda: not queue.reporting or not queue.in_flight)
        if queue.reporting:
            error, orders = queue.end_report()
            self._obey(orders)
            raise error

    # What the queue wants done.

    def _obey(self, orders: Iterable[Order]) -> None:
        for order in orders:
            if isinstance(order, Abandon):
                self._end(order.closure).fail(cancellation())
            elif isinstance(order, Starve):
                closure = self._end(order.closure)
                closure.fail(input_failure(closure, order.error))
            # A connection that broke meanwhile has taken some closures back.
            elif order.closure in self._queue.closures_of(order.worker):
                self._instruct(order)
        self._changed.notify_all()
        if self._queue.lopsided and not self._rebalances:
            self._rebalances = True
            self._rebalancing.ask()

    def _rebalance(self) -> None:
        with self._changed:
            self._rebalances = False
            self._obey(self._queue.rebalance())

    def _instruct(self, order: Run | Recall | Cancel) -> None:
        worker = self._connected[order.worker]
        if not isinstance(order, Run):
            worker.cancel(order.closure, interrupt=isinstance(order, Cancel))
            return
        closure = self._closures[order.closure]
        future = worker.run(closure)
        future.add_done_callback(partial(self._take_note, worker, closure))

    def _end(self, number: int) -> Closure:
        self._ended += 1
        return self._closures.pop(number)

    # What workers and connections tell. In the threads of these.

    def _welcome(self, worker: RemoteWorker) -> None:
        with self._changed:
            self._connected[worker.index] = worker
            self._refused.discard(worker.index)
            self._obey(self._queue.worker_ready(worker.index))

    def _refuse(self, index: int, error: StratagemError) -> None:
        """Reports a worker that cannot be used: once, or while there is no other."""
        with self._changed:
            if index not in self._refused or not self._connected:
                self._queue.fault(error)
            self._refused.add(index)
            self._changed.notify_all()

    def _take_note(
        self, worker: RemoteWorker, closure: Closure, future: Future[bytes]
    ) -> None:
        with self._changed:
            # Another worker may have it by now.
            if self._connected.get(worker.index) is worker:
                self._settle(worker, closure, ending_of(future, worker, closure))

    def _settle(self, worker: RemoteWorker, closure: Closure, ending: Ending) -> None:
        queue, number = self._queue, closure.number
        if ending.lost:
            self._lose(worker)
        elif ending.gave_up:
            self._obey(queue.put_back(number))
        elif ending.error is not None:
            self._end(number).fail(ending.error)
            self._obey(queue.failed(number, ending.error))
        else:
            self._end(number).succeed(ending.payload)
            self._obey(queue.finished(number))

    def _lose(self, worker: RemoteWorker) -> None:
        del self._connected[worker.index]
        self._attendants[worker.index].reconnect()
        self._obey(self._queue.worker_lost(worker.index))

    def _give_up(self) -> None:
        with self._changed:
            self._closed = True
            for closure in self._closures.values():
                closure.abort()
            self._closures.clear()
            self._changed.notify_all()

    def _state_of(self, index: int) -> str:
        there = "" if index in self._connected else "is not there and "
        names = [self._closures[one].name for one in self._queue.closures_of(index)]
        return f"/job:worker/task:{index} {there}has {', '.join(names) or 'none'}"
