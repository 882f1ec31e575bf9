"""What becomes of closures that workers have answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

from stratagem._coordinator.closures.closure import Closure
from stratagem._coordinator.closures.result import Result
from stratagem._coordinator.endings import Ending, ending_by
from stratagem._coordinator.queue.closure_queue import ClosureQueue
from stratagem._coordinator.queue.orders import Order
from stratagem._coordinator.threads.monitor import Monitor
from stratagem._coordinator.workers.remote_worker import RemoteWorker
from stratagem._coordinator.workers.roster import Roster
from stratagem._worker_client.answer import ClosureAnswer
from stratagem_proto.v1.session_pb2 import ClosureIdentity


class Outcomes:
    """Closures that have not ended, and how they end. Used under the lock.

    Args:
        queue: Told of all that ends.
        roster: The workers.
        monitor: The lock, which callbacks of workers take here.
        obey: Carries out what the queue orders.
        on_end: Called with the identity of each closure that ends.

    Attributes:
        ended: How many closures have ended.
    """

    def __init__(
        self,
        queue: ClosureQueue,
        roster: Roster,
        monitor: Monitor,
        obey: Callable[[Iterable[Order]], None],
        on_end: Callable[[ClosureIdentity], None],
    ) -> None:
        self.ended = 0
        self._queue = queue
        self._roster = roster
        self._monitor = monitor
        self._obey = obey
        self._on_end = on_end
        self._closures: dict[int, Closure] = {}

    def __getitem__(self, number: int) -> Closure:
        return self._closures[number]

    def expect(self, closure: Closure) -> None:
        """Takes up a closure that was scheduled."""
        self._closures[closure.number] = closure
        for one in closure.inputs:
            one.users += 1

    def abort(self) -> None:
        """Gives up all closures."""
        for closure in self._closures.values():
            closure.result.abort()
        self._closures.clear()

    def run(self, worker: RemoteWorker, closure: Closure) -> None:
        """Lets a worker run a closure, and sees to what becomes of it."""
        worker.run(closure, _Run(self, worker, closure))

    def fail(self, closure: Closure, error: BaseException) -> None:
        """Ends a closure that failed."""
        self.end(closure.number).result.fail(error)
        self._obey(self._queue.failed(closure.number, error))

    def end(self, number: int) -> Closure:
        """Takes a closure out, however it ends."""
        self.ended += 1
        closure = self._closures.pop(number)
        self._on_end(closure.identity)
        for one in closure.inputs:
            one.users -= 1
            self._spare(one)
        return closure

    def _spare(self, result: Result) -> None:
        """Lets the closure end whose result nobody needs that stays on its worker."""
        stays = result.closure in self._queue.staying
        if stays and not result.needed and not result.copying:
            self.end(result.closure)
            self._obey(self._queue.finished(result.closure))

    def _take_note(
        self, worker: RemoteWorker, closure: Closure, ending: Ending
    ) -> None:
        # Another worker may have it by now, or gets it when the loss is told.
        if self._roster.there.get(worker.index) is worker and not ending.lost:
            self._queue.deepen(worker.index, worker.ended())
            self._settle(worker, closure, ending)

    def _settle(self, worker: RemoteWorker, closure: Closure, ending: Ending) -> None:
        queue, number = self._queue, closure.number
        if ending.gave_up:
            self._obey(queue.put_back(number))
        elif ending.lacking:
            self._bring(worker, closure)
        elif ending.error is not None:
            self.fail(closure, ending.error)
        elif ending.answer.staying_bytes and closure.result.needed:
            self._leave(worker, closure)
        else:
            if ending.answer.staying_bytes:
                worker.drop(closure)
            self._succeed(closure, ending.answer)

    def _succeed(self, closure: Closure, answer: ClosureAnswer) -> None:
        self.end(closure.number).result.succeed(answer.payload)
        self._obey(self._queue.finished(closure.number))

    def _leave(self, worker: RemoteWorker, closure: Closure) -> None:
        """Lets a result stay on its worker, and copies it for the program."""
        worker.keep(closure)
        self._obey(self._queue.stays(closure.number))
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
                self._succeed(closure, future.result())

    def _bring(self, worker: RemoteWorker, closure: Closure) -> None:
        """Lets a worker have by way of here what it could not copy itself."""
        worker.provide_anew(closure)
        for result in closure.inputs:
            source, result.direct = result.source, False
            if isinstance(source, RemoteWorker) and not result.here:
                self._copy(source, self._closures[result.closure])
        self._obey(self._queue.put_back(closure.number, closure.unmet))


class _Run:
    """One run of a closure: the reply of its worker, as `Reply` says.

    A future for each would be a tenth of what the coordinator does for an empty one.
    """

    __slots__ = ("_closure", "_outcomes", "_worker")

    def __init__(
        self, outcomes: Outcomes, worker: RemoteWorker, closure: Closure
    ) -> None:
        self._outcomes, self._worker, self._closure = outcomes, worker, closure

    def set_running_or_notify_cancel(self) -> None:
        """It has begun, which nobody asks for."""

    def set_result(self, answer: ClosureAnswer) -> None:
        with self._outcomes._monitor:
            self._outcomes._take_note(self._worker, self._closure, Ending(answer))

    def set_exception(self, error: BaseException) -> None:
        with self._outcomes._monitor:
            ending = ending_by(error, self._worker, self._closure)
            self._outcomes._take_note(self._worker, self._closure, ending)
