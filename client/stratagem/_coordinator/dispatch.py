"""The shell of the queue of closures: its settings, its lock, its waits, and the workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial

from stratagem._coordinator.closure import Closure, Result
from stratagem._coordinator.closure_queue import ClosureQueue
from stratagem._coordinator.closure_runs import ClosureRuns, input_failure, result_of
from stratagem._coordinator.monitor import (
    QUIET_SECONDS,
    ExclusiveEntry,
    Monitor,
    Patience,
    Rebalancing,
)
from stratagem._coordinator.workers import (
    SHALLOWEST,
    Attendant,
    Connector,
    Events,
    RemoteWorker,
    Roster,
)
from stratagem._core.waiting import Awaited, AwaitedTask, Wait
from stratagem._shipping.kinds import Parcel
from stratagem._worker_client.wire import Batchers
from stratagem_proto.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    StratagemError,
    WorkerLostError,
)
from stratagem_proto.v1.session_pb2 import ClosureIdentity


class QueueReport:
    """Describes a coordinator's queue and workers. Used under the lock; its text is the whole."""

    def __init__(self, queue: ClosureQueue, roster: Roster, runs: ClosureRuns) -> None:
        self._queue, self._roster, self._runs = queue, roster, runs

    def __str__(self) -> str:
        lines = map(self.of_worker, self._roster.indices)
        return f"{self._queue.queued} functions wait; " + "; ".join(lines)

    def of_worker(self, index: int) -> str:
        """Return what a worker has, the function first that it runs."""
        names = self._names(index)
        if index not in self._roster.there:
            return f"{_task(index)} is not there and has {', '.join(names) or 'none'}"
        if names:
            names[0] += f" ({self._seconds(index):.1f} s)"
        return f"{_task(index)} has {', '.join(names) or 'none'}"

    def missing(self) -> Sequence[AwaitedTask]:
        """Return what workers have to do before functions can end that have not."""
        missing = []
        for index in self._roster.indices:
            if index not in self._roster.there:
                missing.append(AwaitedTask(_task(index), "server"))
            elif names := self._names(index):
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                end = f"end of {names[0]!r}{more}"
                missing.append(AwaitedTask(_task(index), end, self._seconds(index)))
        return missing

    def _names(self, index: int) -> list[str]:
        return [self._runs[one].name for one in self._queue.closures_of(index)]

    def _seconds(self, index: int) -> float:
        return time.monotonic() - self._roster.there[index].busy_since


def _task(index: int) -> str:
    return f"/job:worker/task:{index}"


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """How a coordinator schedules: the arguments of `ClusterCoordinator`."""

    queue_size: int
    start_delay: float
    longest_start_delay: float
    watchdog_seconds: float | None
    resolver_seconds: float | None
    max_worker_losses: int | None

    def __post_init__(self) -> None:
        """Raise `InvalidArgumentError` if one is out of its range."""
        if self.queue_size < 1:
            raise InvalidArgumentError(
                f"queue_size is {self.queue_size}; at least 1 function must have room"
            )
        if self.start_delay < 0 or self.longest_start_delay < 0:
            raise InvalidArgumentError(
                f"start_delay is {self.start_delay} and longest_start_delay is "
                f"{self.longest_start_delay}; neither may be negative"
            )
        if self.watchdog_seconds is not None and self.watchdog_seconds <= 0:
            raise InvalidArgumentError(
                f"watchdog_seconds is {self.watchdog_seconds}; it must be positive, or "
                "None for no watchdog"
            )
        if self.resolver_seconds is not None and self.resolver_seconds <= 0:
            raise InvalidArgumentError(
                f"resolver_seconds is {self.resolver_seconds}; it must be positive, or "
                "None for workers that join by add_worker alone"
            )
        if self.max_worker_losses is not None and self.max_worker_losses < 1:
            raise InvalidArgumentError(
                f"max_worker_losses is {self.max_worker_losses}; it must be at least "
                "1, or None for functions that run again whatever becomes of workers"
            )

    def delay_of(self, worker: int) -> float:
        """Return how many seconds a worker starts later. Spec: FLT-12."""
        return min(worker * self.start_delay, self.longest_start_delay)


class Dispatch:
    """What a program and its workers ask of the queue of closures. Thread-safe.

    Everything happens under one lock, in the thread that brings the news: that of the program for
    what it schedules, a connection's for what its worker answers.
    """

    def __init__(
        self,
        connect: Connector,
        settings: CoordinatorSettings,
        on_end: Callable[[ClosureIdentity], None],
        batchers: Batchers,
    ) -> None:
        self._queue = ClosureQueue(settings.queue_size, SHALLOWEST, settings.max_worker_losses)
        self._batchers = batchers
        self._monitor = Monitor(batchers.hurry, self._visible_wait)
        self._entry = threading.Lock()
        events = Events(self._welcome, self._refuse, self._miss)
        self._roster = Roster(connect, events)
        self._rebalancing = Rebalancing(self._rebalance, self._give_up)
        self._runs = ClosureRuns(
            self._queue, self._roster, self._monitor, self._rebalancing, on_end
        )
        self._report = QueueReport(self._queue, self._roster, self._runs)
        self._rebalancing.start()
        batchers.start()

    def add(self, index: int, address: str, delay: float = 0.0, late: bool = False) -> None:
        """Let a worker join, and connect to it after `delay` seconds. Spec: FLT-12.

        With `late`, others were there before, so that it is no error if it is there but cannot be
        used.

        Raises:
            AlreadyExistsError: There is a worker of that index.
        """
        with self._monitor:
            self._monitor.require_open()
            if index in self._roster.indices:
                raise AlreadyExistsError(
                    f"the coordinator has a worker {index} already; start the worker "
                    f"server with --task {max(self._roster.indices) + 1}, or if it "
                    f"takes that one's place, call remove_worker({index}) before"
                )
            self._roster.add(index, address, delay, late)

    def remove(self, index: int) -> None:
        """Let a worker leave once it has nothing to run; do not wait for that."""
        with self._monitor:
            self._roster.require(index)
            self._runs.obey(self._queue.worker_leaves(index))

    def await_removal(self, index: int, patience: Patience) -> None:
        """Wait until a worker has left; it leaves all the same if that takes too long."""
        with self._monitor:
            left = f"/job:worker/task:{index} to leave"
            if not self._monitor.wait(lambda: index not in self._queue.leaving, left, patience):
                state = self._report.of_worker(index)
                raise patience.exceeded(f"{state}; it leaves once that has ended")

    def workers(self) -> list[int]:
        with self._monitor:
            return sorted(self._roster.there)

    def schedule(self, begin: Callable[[], Closure], patience: Patience) -> None:
        """Wait while the queue is full, and take the closure that `begin` then returns.

        No other thread of the program schedules or joins meanwhile. Spec: COO-6, ERR-4, ERR-5.
        """
        with ExclusiveEntry(self._entry, patience), self._monitor:
            if not self._monitor.wait(
                lambda: bool(self._queue.error) or not self._queue.full,
                "room in the queue of functions",
                patience,
            ):
                raise patience.exceeded(f"the queue is full. {self._report}")
            closure = begin()
            self._runs.expect(closure)
            # A worker may be so quick that the closure itself has failed by then: that is for the
            # next call.
            failed = bool(self._queue.error) or closure.failure is not None
            with self._batchers:
                self._put(closure)
            if failed:
                self._report_error(patience)

    def join(self, patience: Patience) -> None:
        """Wait until all closures have ended; if that takes too long, they go on.

        Spec: COO-9, ERR-4.
        """
        with ExclusiveEntry(self._entry, patience), self._monitor:
            if not self._monitor.wait(
                lambda: bool(self._queue.error) or self._queue.idle,
                "the end of all functions",
                patience,
            ):
                raise patience.exceeded(f"functions have not ended, and go on. {self._report}")
            self._report_error(patience)

    def done(self) -> bool:
        """Return whether all closures have ended. Spec: COO-10, ERR-4."""
        with self._monitor:
            self._report_error(Patience("done"))
            self._batchers.hurry()
            return self._queue.idle

    def ask_all(self, call: Parcel, patience: Patience) -> list[bytes]:
        """Let each worker run a call after what it has; return the results in the workers' order.

        Raises:
            WorkerLostError: A worker was lost before it answered.
            Exception: What the call raised on a worker.
        """
        with self._monitor:
            there = self._roster.there
            are_there = "all workers to be there"
            if not self._monitor.wait(
                lambda: there.keys() == self._roster.indices, are_there, patience
            ):
                raise patience.exceeded(f"workers are missing. {self._report}")
            workers = [there[index] for index in sorted(there)]
            futures = [worker.call(call) for worker in workers]
        with self._visible_wait("the answers of all workers", patience):
            answered = wait(futures, patience.left)
        if answered.not_done:
            raise patience.exceeded(f"workers have not answered. {self.state()}")
        pairs = zip(futures, workers, strict=True)
        return [result_of(future, worker, call) for future, worker in pairs]

    def release(self, handles: Sequence[int]) -> None:
        """Let workers forget what nothing names any more."""
        with self._monitor:
            for worker in self._roster.there.values():
                worker.release(handles)

    def ended(self) -> int | None:
        """Return how many closures have ended so far; None if none is left."""
        with self._monitor:
            return None if self._queue.idle else self._runs.ended

    def ended_in_all(self) -> int | None:
        """Return how many closures have ended; None while some have not."""
        with self._monitor:
            return self._runs.ended if self._queue.idle else None

    def state(self) -> str:
        """Return where everything stands, for a person. Spec: FLT-13."""
        with self._monitor:
            return str(self._report)

    def await_end(self, result: Result) -> None:
        """Wait until the closure of a result has ended. Spec: RMV-1."""
        self._batchers.hurry()
        if result.ended.wait(QUIET_SECONDS):
            return
        with self._monitor:
            name = self._runs.name_of(result.closure)
        wait = self._visible_wait(f"the value of {name!r}", Patience("fetch"))
        wait.begin(ago=QUIET_SECONDS)
        with wait:
            result.ended.wait()

    def _visible_wait(self, subject: str, patience: Patience) -> Wait:
        """Return a wait for functions that people see."""
        awaited = Awaited(subject, self._missing, reason="function")
        return Wait("the coordinator", subject, patience.left, awaited)

    def _missing(self) -> Sequence[AwaitedTask]:
        with self._monitor:
            return self._report.missing()

    def close(self) -> None:
        """Give up everything, soon. May be called anywhere, and again."""
        self._rebalancing.close()
        self._batchers.close()

    # What the program asks for. All that follows is done under the lock.

    def _put(self, closure: Closure) -> None:
        if closure.failure is not None:
            error = input_failure(closure, closure.failure)
            self._queue.fault(error)
            self._runs.end(closure.number).result.fail(error)
            return
        self._runs.obey(self._queue.put(closure.number, closure.unmet))

    def _report_error(self, patience: Patience) -> None:
        queue = self._queue
        if not queue.error:
            return
        self._monitor.require_open()
        if not queue.reporting:
            self._runs.obey(queue.begin_report())
        # Another thread may come first.
        if not self._monitor.wait(
            lambda: not queue.reporting or not queue.in_flight,
            "the end of functions that are given up",
            patience,
        ):
            raise patience.exceeded(
                "a function has failed, and those that are given up for it have not "
                f"ended. {self._report}"
            ) from queue.error
        if queue.reporting:
            error, orders = queue.end_report()
            self._runs.obey(orders)
            raise error

    def _rebalance(self) -> None:
        with self._monitor:
            self._runs.rebalance()

    # What workers and connections tell. In the threads of these.

    def _welcome(self, attendant: Attendant, worker: RemoteWorker) -> None:
        with self._monitor:
            if self._roster.welcome(attendant, worker):
                self._runs.obey(self._queue.worker_ready(worker.index))
        worker.link.when_leaving(partial(self._retire, worker))
        worker.link.when_ended(partial(self._lose, worker))

    def _retire(self, worker: RemoteWorker) -> None:
        with self._monitor:
            if self._roster.retire(worker):
                self._runs.obey(self._queue.worker_retires(worker.index))

    def _refuse(self, attendant: Attendant, error: StratagemError) -> None:
        with self._monitor:
            if self._roster.refuse(attendant, error):
                self._queue.fault(error)
                self._monitor.wake()

    def _miss(self, attendant: Attendant, error: StratagemError) -> None:
        with self._monitor:
            self._roster.miss(attendant, error)

    def _lose(self, worker: RemoteWorker, why: StratagemError) -> None:
        with self._monitor:
            if self._roster.lose(worker, why):
                crashed = isinstance(why, WorkerLostError) and not why.took_leave
                self._runs.obey(self._queue.worker_lost(worker.index, crashed))

    def _give_up(self) -> None:
        with self._monitor:
            self._roster.close()
            self._runs.abort()
            self._monitor.close()
