"""Running closures on workers as the queue orders, and applying their outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from stratagem._coordinator.closure import Closure, Result
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
from stratagem._coordinator.monitor import Monitor, Rebalancing
from stratagem._coordinator.workers import RemoteWorker, Roster
from stratagem._shipping.kinds import Parcel
from stratagem._shipping.pickling import words_of
from stratagem._worker_client.wire import (
    ClosureAnswer,
    ClosureFailure,
    FailureKind,
    RemoteTraceback,
)
from stratagem_proto.errors import (
    AbortedError,
    CancelledError,
    ClosureInputError,
    PSUnavailableError,
    UnavailableError,
    WorkerLostError,
)
from stratagem_proto.v1.session_pb2 import ClosureIdentity


def result_of(future: Future[ClosureAnswer], worker: RemoteWorker, call: Parcel) -> bytes:
    """Wait for what is no closure, and return its result."""
    try:
        return future.result().payload
    except ClosureFailure as failure:
        raise _original(worker.failure_of_input(call) or failure) from failure


def _error_of(failure: ClosureFailure, worker: RemoteWorker, closure: Closure) -> BaseException:
    """Return what is raised for a closure that failed on a worker."""
    error = failure.exception
    if failure.kind is FailureKind.INPUT:
        cause = worker.failure_of_input(closure.parcel)
        error = input_failure(closure, error if cause is None else _original(cause))
    elif isinstance(error, UnavailableError) and "/job:ps" in (error.task or str(error)):
        error = PSUnavailableError(str(error), task=error.task)
    if not _lacks_input(error):
        trace = RemoteTraceback(worker.name, closure.name, failure.traceback)
        # Frozen dataclasses let nobody set an attribute by their own means.
        object.__setattr__(error, "__cause__", trace)
    return error


def _lacks_input(error: BaseException) -> bool:
    """Return whether a worker could not have another closure's result from the one that has it."""
    return isinstance(error, ClosureInputError) and isinstance(
        error.original_exception, WorkerLostError
    )


def _original(error: BaseException) -> BaseException:
    return error.exception if isinstance(error, ClosureFailure) else error


def input_failure(closure: Closure, error: BaseException) -> ClosureInputError:
    """Return the error of a closure that lacks something that it takes. Spec: ERR-9."""
    if isinstance(error, ClosureInputError):
        return error
    found = ClosureInputError(
        f"{closure.name} was not run, because an input of it failed: "
        f"{type(error).__name__}: {words_of(error)}"
    )
    found.original_exception = error
    return found


def deadly_closure(closure: Closure, workers: Sequence[int]) -> AbortedError:
    """Return the error of a closure that is not run again after it lost these workers."""
    names = ", ".join(f"/job:worker/task:{worker}" for worker in workers)
    return AbortedError(
        f"{closure.name} is not run again: workers that had it were lost, "
        f"{len(workers)} one after the other ({names}). It may end their process, for "
        "want of memory or by a fault outside of Python: see what they wrote last, and "
        "run it in a process of its own. If workers are lost for other reasons, give "
        "the ClusterCoordinator a larger max_worker_losses, or None"
    )


def cancellation() -> CancelledError:
    """Return the error that waiting for a cancelled closure raises. Spec: ERR-4."""
    return CancelledError(
        "The corresponding function is cancelled. Please reschedule the function: "
        "another one failed before it ended"
    )


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
        self._closures[closure.number] = closure
        for one in closure.inputs:
            one.users += 1

    def abort(self) -> None:
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
            error = deadly_closure(closure, order.workers)
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
            worker.link.cancel(order.closure, interrupt=isinstance(order, Cancel))
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

    def _take_answer(self, worker: RemoteWorker, closure: Closure, answer: ClosureAnswer) -> None:
        if not self._ended_on(worker):
            return
        if not answer.staying_bytes or not closure.result.needed:
            if answer.staying_bytes:
                worker.drop(closure)
            self._succeed(worker, closure, answer)
            return
        worker.keep(closure)
        self.obey(self._queue.stays(closure.number))
        if closure.result.wanted:
            self._copy(worker, closure)

    def _take_failure(self, worker: RemoteWorker, closure: Closure, failure: BaseException) -> None:
        # What a lost worker had runs elsewhere once the loss is told. Spec: FLT-1.
        if not isinstance(failure, ClosureFailure) or not self._ended_on(worker):
            return
        if failure.kind is FailureKind.CANCELLED:
            self.obey(self._queue.put_back(closure.number))
            return
        try:
            error = _error_of(failure, worker, closure)
        except Exception as raised:
            # Classes of exceptions are the user's. A closure ends whatever they do.
            error = raised
        if _lacks_input(error):
            self._provide(worker, closure)
        else:
            self._fail(closure, error)

    def _ended_on(self, worker: RemoteWorker) -> bool:
        """Count a run that has ended; return whether its worker is there."""
        if self._roster.there.get(worker.index) is not worker:
            return False
        self._queue.deepen(worker.index, worker.ended())
        return True

    def _succeed(self, worker: RemoteWorker, closure: Closure, answer: ClosureAnswer) -> None:
        self.end(closure.number).result.succeed(answer.payload, worker.name)
        self.obey(self._queue.finished(closure.number))

    def _copy(self, worker: RemoteWorker, closure: Closure) -> None:
        def receive(future: Future[ClosureAnswer]) -> None:
            with self._monitor:
                there = self._roster.there.get(worker.index) is worker
                # Otherwise the loss is told, and the closure runs again.
                if there and future.exception() is None:
                    self._succeed(worker, closure, future.result())

        worker.send_back(closure).add_done_callback(receive)

    def _provide(self, worker: RemoteWorker, closure: Closure) -> None:
        """Send a worker, by way of this process, what it could not copy itself."""
        worker.send_inputs_again(closure)
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
            self._runs._take_answer(self._worker, self._closure, answer)

    def set_exception(self, error: BaseException) -> None:
        with self._runs._monitor:
            self._runs._take_failure(self._worker, self._closure, error)
