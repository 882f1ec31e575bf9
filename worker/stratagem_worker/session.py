"""What one client has done on this worker, and what it is told of that."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from stratagem._for_workers import (
    Backlog,
    Loader,
    WritesBehind,
    clear_remains,
    on_worker,
    running,
)
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.session_pb2 import OpenSessionRequest
from stratagem_proto.wire.payloads import Pieces, batches, split
from stratagem_rpc.server_call import DirectWriter
from stratagem_rpc.server_log import LOG
from stratagem_worker.functions import (
    Capture,
    Executor,
    Interrupted,
    Interruptible,
    Job,
    cancelled,
    run_closure,
    write_failed,
)
from stratagem_worker.results import Copies, StayingResults
from stratagem_worker.settings import WorkerSettings

# What lingers is looked after so much later at most, if no other thread does before. Each look
# wakes the event loop, of which short functions feel every time.
_LOOK_SECONDS = 0.005

# What a function wrote that runs on for longer is sent at the next look.
_WRITE_LINGER_SECONDS = 0.002

# So many functions run ahead of their writes. More spare little, and a checkpoint that is asked for
# waits for them.
_MOST_AHEAD = 16

# A function that ends later than this after an unreported one waits for its writes. If none ends in
# twice that time, another thread waits for them soon: a program that awaits a function whose
# successor takes its time has waited so much longer.
_OUTCOME_LINGER_SECONDS = 0.01

# What need not be sent at once is, with what comes meanwhile, after this time. Updates that take a
# millisecond then cost client and worker half of what they do if each travels alone.
_EVENT_LINGER_SECONDS = 0.01

# Lines that a function may write before it has to wait for them to be sent.
_LINES = 1_000


class Watch:
    """Looks at what lingers for as long as anything does. Made on the event loop.

    There is one for all that waits for writes: a timer of each kind would wake the loop for itself.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._looks: list[Callable[[float], bool]] = []
        self._look_requested = self._awake = False

    def over(self, look: Callable[[float], bool]) -> None:
        """Look in a further way.

        Args:
            look: Called on the event loop with the present time, in seconds of a monotonic clock;
                returns whether anything lingers yet.
        """
        self._looks.append(look)

    def ask(self) -> None:
        """Look soon, because something lingers; in any thread."""
        self._look_requested = True
        if not self._awake:
            # A function may end when its worker has stopped already.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.expect)

    def expect(self) -> None:
        """As `ask`, on the event loop, which later calls of `ask` need not wake."""
        if not self._awake:
            self._awake = True
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._look_requested, now = False, time.monotonic()
        lingering = [look(now) for look in self._looks]
        # Before the last glance: a thread that asks from now on wakes the loop.
        self._awake = False
        if self._look_requested or any(lingering):
            self.expect()


class WorkerWriteBatcher:
    """Keeps writes back while there is more to run. Made on the event loop."""

    def __init__(self, watch: Watch, more_follow: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._more_follow = more_follow
        self._backlogs: set[Backlog] = set()
        watch.over(self._look)

    def keeps(self, backlog: Backlog) -> bool:
        """Return whether a write is to wait; in the thread that runs functions."""
        if not self._more_follow():
            return False
        self._backlogs.add(backlog)
        self._watch.ask()
        return True

    def _look(self, now: float) -> bool:
        for backlog in [*self._backlogs]:
            # First: it is added again after it has kept another write.
            self._backlogs.discard(backlog)
            if backlog.keeps_since(now - _WRITE_LINGER_SECONDS):
                # It may have to wait until the socket has room.
                self._loop.run_in_executor(None, backlog.push)
            elif backlog.keeps_since(now):
                self._backlogs.add(backlog)
        return bool(self._backlogs)


class Outbox:
    """Takes events from any thread and sends them in order.

    The thread that puts what is awaited sends all there is, if it may and nothing else is being
    sent. All else is left to the event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._direct: DirectWriter | None = None
        self._sending = threading.Lock()
        self._events: deque[pb.WorkEvent] = deque()
        self._begun: dict[int, bool] = {}
        self._filled = asyncio.Event()
        self._waking = self._lingering = self._closed = False
        self._error: Exception | None = None
        self._room = threading.Semaphore(_LINES)

    def write_by(self, direct: DirectWriter | None) -> None:
        """Let threads send, from now on; None if they cannot."""
        self._direct = direct

    def put(self, *events: pb.WorkEvent, at_once: bool = True) -> None:
        """Send events; not in a thread that may be interrupted.

        Those that are awaited are sent `at_once`, and not with what follows.
        """
        self._events.extend(events)
        if not at_once:
            self._let_linger()
        elif not self._send_here():
            self._wake_loop()

    def _send_here(self) -> bool:
        """Send all there is in this thread; return whether that was possible."""
        direct = self._direct
        if direct is None or not self._sending.acquire(blocking=False):
            return False
        try:
            if not direct.is_clear:
                return False
            for batch in () if self._closed else _batches(self._take()):
                direct.write_at_once(_encoded(batch))
                self._make_room(batch)
        except Exception as error:
            # What was taken is lost, and so is the session.
            self._on_loop(partial(self.close, error))
        finally:
            self._sending.release()
        return True

    def _wake_loop(self) -> None:
        if not self._waking:
            self._waking = True
            self._on_loop(self._fill)

    def _let_linger(self) -> None:
        if not self._lingering:
            self._lingering = True
            self._on_loop(self._linger)

    def _on_loop(self, action: Callable[[], None]) -> None:
        # A function may end when its worker has stopped already.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)

    def expect(self) -> None:
        """Prepare for events that linger; on the event loop, which they then spare."""
        if not self._lingering:
            self._lingering = True
            self._linger()

    def put_started(self, closure: int) -> None:
        """Send soon that a function has begun, unless its end is sent by then.

        Most that a worker is sent together have ended when the first of them is reported.
        """
        self._begun[closure] = True
        self._let_linger()

    def put_output(self, output: pb.Output) -> None:
        """Send what a function wrote; wait while there is too much of that."""
        if not self._closed:
            self._room.acquire()
            self._events.append(pb.WorkEvent(output=output))
            self._wake_loop()

    def put_finished(self, finished: pb.Finished, at_once: bool = True) -> None:
        """Send how a function ended, its payload in pieces; as `put`."""
        self._begun.pop(finished.closure, None)
        pieces, finished.payload = split(finished.payload)
        parts = [pb.WorkEvent(piece=piece) for piece in pieces]
        self.put(*parts, pb.WorkEvent(finished=finished), at_once=at_once)

    def put_sent_back(self, closure: int, payload: bytes) -> None:
        """Send a result that has stayed on the worker."""
        pieces, last = split(payload)
        parts = [pb.WorkEvent(piece=piece) for piece in pieces]
        self.put(*parts, pb.WorkEvent(sent_back=pb.SentBack(closure=closure, payload=last)))

    def close(self, error: Exception | None = None) -> None:
        """Let `messages` end once all is sent, by an error if there is one; on the event loop."""
        if not self._closed:
            self._closed, self._error = True, error
            self._room.release(_LINES)
            self._filled.set()

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield what the event loop is to send, at once as much as there is.

        Raises:
            Exception: As given to `close`.
        """
        while self._events or not self._closed:
            await self._filled.wait()
            if not self._closed:
                self._filled.clear()
            with self._sending:
                for batch in _batches(self._take()):
                    yield _encoded(batch)
                    self._make_room(batch)
        if self._error is not None:
            raise self._error

    def _take(self) -> list[pb.WorkEvent]:
        # First: the end of one of them may be among the events by now. Or its thread takes it out
        # just now, and puts its end next.
        begun = [one for one in list(self._begun) if self._begun.pop(one, False)]
        events = [self._events.popleft() for _ in range(len(self._events))]
        return [*(pb.WorkEvent(started=pb.Started(closure=one)) for one in begun), *events]

    def _linger(self) -> None:
        self._loop.call_later(_EVENT_LINGER_SECONDS, self._fill)

    def _fill(self) -> None:
        self._waking = self._lingering = False
        self._filled.set()

    def _make_room(self, sent: Iterable[pb.WorkEvent]) -> None:
        for event in sent:
            if event.HasField("output"):
                self._room.release()


def _batches(events: list[pb.WorkEvent]) -> Iterable[list[pb.WorkEvent]]:
    # Most often there is one, which is not worth a look at its size.
    return (events,) if len(events) == 1 else batches(events)


def _encoded(events: Iterable[pb.WorkEvent]) -> bytes:
    return pb.WorkResponse(events=events).SerializeToString()


class FunctionOutcome(NamedTuple):
    """The outcome of a function that has ended.

    Attributes:
        finished: The message that reports it, if no write of the function fails.
        began: When the function began, in seconds of a monotonic clock.
        ended: When the function ended.
        writes: The writes that the function has not waited for.
    """

    finished: pb.Finished
    began: float
    ended: float
    writes: WritesBehind


class UnreportedOutcomes:
    """Outcomes of the functions of one session, in order. Made on the event loop.

    Args:
        watch: Looks whether they linger for too long.
        report: Called from any thread with each message, the seconds that the function ran, and
            whether nothing follows that it could be told with.
    """

    def __init__(self, watch: Watch, report: Callable[[pb.Finished, float, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._report = report
        self._outcomes: deque[FunctionOutcome] = deque()
        self._reporting = threading.Lock()
        watch.over(self._look)

    def add(self, outcome: FunctionOutcome, more_follow: bool) -> None:
        """Add an outcome, in the thread that runs functions; `more_follow` if there are others."""
        if not self._outcomes and outcome.writes.has_outcome:
            return self._report_one(outcome, at_once=not more_follow)
        self._outcomes.append(outcome)
        many = len(self._outcomes) >= _MOST_AHEAD
        lingers = self._linger_since(outcome.ended - _OUTCOME_LINGER_SECONDS)
        if not more_follow or many or lingers:
            self._report_all(at_once=not more_follow)
        else:
            self._watch.ask()

    def _report_all(self, at_once: bool) -> None:
        """Report all outcomes, each as soon as its writes are applied."""
        with self._reporting:
            while self._outcomes:
                outcome = self._outcomes[0]
                outcome.writes.wait()
                self._outcomes.popleft()
                self._report_one(outcome, at_once and not self._outcomes)

    def _linger_since(self, moment: float) -> bool:
        try:
            return self._outcomes[0].ended < moment
        except IndexError:
            return False  # another thread has just reported all

    def _report_one(self, outcome: FunctionOutcome, at_once: bool) -> None:
        finished, write = outcome.finished, outcome.writes.failed
        if write is not None and not finished.HasField("failure"):
            finished = write_failed(finished.closure, write)
        self._report(finished, outcome.ended - outcome.began, at_once)

    def _look(self, now: float) -> bool:
        if self._linger_since(now - 2 * _OUTCOME_LINGER_SECONDS):
            self._loop.run_in_executor(None, self._report_all, True)
            return False
        return bool(self._outcomes)


class Running(NamedTuple):
    """What runs on the worker."""

    session: WorkSession
    closure: int


class WorkSession:
    """Takes the instructions of one client and sends it events; on the event loop.

    Attributes:
        role: What the client is to the cluster.
        task: The client's task.
        heard: When it was heard of last, in seconds of a monotonic clock.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        executor: Executor,
        interruptible: Interruptible[Running],
        results: StayingResults,
        loader: Loader,
        client: OpenSessionRequest,
    ) -> None:
        self.role, self.task = client.role, client.task
        self.heard = time.monotonic()
        watch = Watch()
        self.outbox = Outbox()
        self._unreported = UnreportedOutcomes(watch, self._report)
        self._batcher = WorkerWriteBatcher(watch, lambda: executor.has_more)
        self.results = results
        self._copies = Copies(results, settings)
        self._settings = settings
        self._executor = executor
        self._interruptible = interruptible
        self._loader = loader
        self._given_up: set[int] = set()
        # Of the functions whose outcomes have not been reported.
        self._writes: dict[int, WritesBehind] = {}
        # How far servers have come, by task index, as far as the client knows.
        self._reported: dict[int, bytes] = {}
        self._accepting = True
        self._pieces = Pieces()
        self._orders: dict[str, Callable[[Any], None]] = {
            "piece": self._pieces.add,
            "define": self._obey_define,
            "run": self._obey_run,
            "cancel": self._obey_cancel,
            "release": self._obey_release,
            "take": self._obey_take,
            "send_back": self._obey_send_back,
            "beat": lambda beat: self.outbox.put(pb.WorkEvent(beat=beat)),
        }

    def obey(self, instructions: Sequence[pb.Instruction]) -> None:
        """Carry out instructions; raise `InvalidArgumentError` if one is not known here."""
        self.heard = time.monotonic()
        for instruction in instructions:
            kind = instruction.WhichOneof("kind")
            if kind is None:
                raise InvalidArgumentError(
                    f"{self._settings.label} was sent an instruction that it does not "
                    "know; install the same release of stratagem on both"
                )
            self._orders[kind](getattr(instruction, kind))

    def _obey_define(self, order: pb.Define) -> None:
        payload = self._pieces.joined(order.payload)
        self._submit(partial(self._define, order.handle, payload))

    def _obey_run(self, order: pb.Run) -> None:
        payload = self._pieces.joined(order.payload)
        if not self._accepting:
            self.outbox.put_finished(cancelled(order.closure, self._settings.label))
            return
        self.outbox.expect()
        self._submit(partial(self._run, order, payload), order.closure)

    def _obey_cancel(self, order: pb.Cancel) -> None:
        def waits(job: Job) -> bool:
            return job.session is self and job.closure == order.closure

        for _ in self._executor.withdraw(waits):
            self.outbox.put_finished(cancelled(order.closure, self._settings.label))
        if order.interrupt:
            # If it is just about to begin, it finds this.
            self._given_up.add(order.closure)
            this = Running(self, order.closure)
            self._interruptible.interrupt(lambda running: running == this)
            if writes := self._writes.get(order.closure):
                writes.give_up_waiting()

    def _obey_release(self, order: pb.Release) -> None:
        self.results.release(order.results)
        self._submit(partial(self._loader.release, list(order.handles)))

    def _obey_take(self, order: pb.Take) -> None:
        copying = self._copies.begin(order.place)
        self._submit(partial(self._take, order.handle, copying))

    def _obey_send_back(self, order: pb.SendBack) -> None:
        payload = self.results.payload(order.closure)
        self.outbox.put_sent_back(order.closure, payload)

    def leave(self) -> None:
        """Let nothing begin any more, and give back what waits, so that others run it now."""
        self.outbox.put(pb.WorkEvent(leaving=pb.Leaving()))
        for job in self._withdrawn():
            if job.closure is not None:
                self.outbox.put_finished(cancelled(job.closure, self._settings.label))

    def _withdrawn(self) -> list[Job]:
        """Let nothing begin any more, and return what waited."""
        self._accepting = False
        return self._executor.withdraw(lambda job: job.session is self)

    def end(self) -> None:
        """Drop what waits, interrupt what runs, and release all objects."""
        self._withdrawn()
        self.outbox.close()
        self._copies.end()
        self.results.close()
        self._interruptible.interrupt(lambda running: running.session is self)
        for writes in [*self._writes.values()]:
            writes.give_up_waiting()
        self._submit(self._loader.close)

    def _submit(self, work: Callable[[], None], closure: int | None = None) -> None:
        self._executor.submit(Job(self, closure, work))

    # In the thread of the executor.

    def _define(self, handle: int, payload: bytes) -> None:
        try:
            self._loader.define(handle, payload)
        except Exception as error:
            # What needs it fails, and says so to the client.
            LOG.warning("object not loaded", handle=handle, why=repr(error))

    def _take(self, handle: int, copying: Future[bytes]) -> None:
        try:
            self._loader.take(handle, copying.result())
        except Exception as error:
            self._loader.lack(handle, error)

    def _run(self, order: pb.Run, payload: bytes) -> None:
        closure, worker = order.closure, self._settings.label
        writes = self._writes[closure] = WritesBehind(self._batcher)
        self.outbox.put_started(closure)
        began = time.monotonic()
        with (
            Capture(partial(self._write, closure)),
            on_worker(self._settings.task),
            running(order.identity if order.HasField("identity") else None),
            writes,
        ):
            finished = self._interruptible.run(
                Running(self, closure),
                partial(self._finished, order, payload),
                partial(cancelled, closure, worker),
            )
        clear_remains()
        self._given_up.discard(closure)
        outcome = FunctionOutcome(finished, began, time.monotonic(), writes)
        self._unreported.add(outcome, self._executor.has_more)

    def _report(self, finished: pb.Finished, seconds: float, at_once: bool) -> None:
        self._writes.pop(finished.closure, None)
        for task, reached in self._loader.reached().items():
            if self._reported.get(task) != reached:
                self._reported[task] = finished.reached[task] = reached
        self.outbox.put_finished(finished, at_once)
        # Nobody waits for this.
        self._executor.count(finished, seconds)

    def _finished(self, order: pb.Run, payload: bytes) -> pb.Finished:
        if order.closure in self._given_up or not self._accepting:
            raise Interrupted
        found = run_closure(order, payload, self._loader)
        stays = order.use == pb.RESULT_USE_LARGE_STAYS
        return self.results.keep_if_large(found) if stays else found

    def _write(self, closure: int, output: pb.Output) -> None:
        output.closure = closure
        self.outbox.put_output(output)
