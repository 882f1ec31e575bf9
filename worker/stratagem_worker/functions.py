"""Running the functions of clients: their outcomes, what they print, and ending them."""

from __future__ import annotations

import _imp
import _weakrefset
import ctypes
import gc
import io
import logging
import sys
import threading
import time
import traceback
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from importlib import _bootstrap
from itertools import takewhile
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TextIO, TypeVar

from stratagem._for_workers import (
    PLAIN,
    Guard,
    Loader,
    OutcomeForm,
    SentWrite,
    guarded_by,
    words_of,
)
from stratagem_proto.errors import CancelledError
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.status_pb2 import RunningFunction
from stratagem_rpc.lines import LineSplitter, visible
from stratagem_rpc.server_log import LOG
from stratagem_rpc.serving.figures import SECONDS, Histogram
from stratagem_rpc.whereabouts import stack_of, whereabouts

Name = TypeVar("Name")
Result = TypeVar("Result")

_GLANCE_SECONDS = 0.0001

# What runs while a module is imported that was not there yet.
_IMPORT = _bootstrap._find_and_load.__code__  # type: ignore[attr-defined]

# The callbacks of weak references are there.
_WEAK_REFERENCES = {_weakrefset.__file__, weakref.__file__}


class Interrupted(BaseException):
    """What this thread runs was given up by another thread.

    As `KeyboardInterrupt`, it is none of the exceptions that programs expect.
    """


class Interruptible(Generic[Name]):
    """What one thread runs and another may interrupt, one thing at a time.

    CPython raises the exception in the thread before one of the next instructions of its Python
    code. That must not be one of our own, so there is no lock here: one that is just being taken
    would stay taken. Nor one of gRPC's, so it is put off there (`stratagem._core.waiting`),
    nor one of a module that is being imported, nor one of a `__del__`, or of a callback of a weak
    reference or of the collector, where Python drops exceptions.
    """

    def __init__(self) -> None:
        self._running: Name | None = None
        self._struck = False
        self._striking = False
        self._guard = Guard(Interrupted)

    def run(self, name: Name, body: Callable[[], Result], given_up: Callable[[], Result]) -> Result:
        """Run something in this thread that can be interrupted by its name.

        `body` may raise `Interrupted` itself; `given_up` makes the result where it was interrupted.
        """
        thread = threading.get_ident()
        try:
            try:
                self._thread, self._struck = thread, False
                self._guard = Guard(Interrupted)
                self._running = name
                with guarded_by(self._guard):
                    return body()
            finally:
                self._wait_out(thread)
        except Interrupted:
            # It may have come just when this was to begin.
            self._wait_out(thread)
            return given_up()

    def _wait_out(self, thread: int) -> None:
        """End the time in which an interruption may arrive."""
        awaited = False
        while True:
            try:
                self._running = None
                while self._striking:
                    time.sleep(_GLANCE_SECONDS)
                if awaited or not self._struck:
                    return
                # In place of one that may not have come. To take that back would have CPython 3.11
                # look out for it at every call from then on: that takes time, and a profiler never
                # comes to an end.
                awaited = True
                _raise(thread)
                while True:
                    pass  # until it comes
            except Interrupted:
                continue

    def interrupt(self, which: Callable[[Name], bool]) -> None:
        """Interrupt what runs, if that is meant; to be called from one thread only.

        Nothing is interrupted twice.
        """
        self._striking = True
        try:
            running = self._running
            if running is not None and which(running) and not self._struck:
                self._struck = True
                interrupt = partial(_raise_if_it_may_come, self._thread)
                while not self._guard.strike(interrupt):
                    time.sleep(_GLANCE_SECONDS)
        finally:
            self._striking = False


def _raise_if_it_may_come(thread: int) -> bool:
    """Raise the exception in a thread, unless that is in the midst of something.

    A module of which the import is interrupted would be run again from its beginning by the next
    import, although others keep what it has told them the first time: some modules cannot be
    imported then any more.
    """
    # No import begins meanwhile.
    _imp.acquire_lock()
    try:
        if _is_in_the_midst(thread):
            return False
        if sys.version_info >= (3, 12):
            _raise(thread)
            return True
        # Before CPython 3.12 a thread that has not run yet has the number of the one that starts
        # it. It would take the exception in its place and end, and the other one would wait for
        # ever until it has begun.
        with threading._active_limbo_lock:  # type: ignore[attr-defined]
            if threading._limbo:  # type: ignore[attr-defined]
                return False
            _raise(thread)
            return True
    finally:
        _imp.release_lock()


def _is_in_the_midst(thread: int) -> bool:
    """Return whether a thread imports something, or runs what drops exceptions."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    return any(
        code is _IMPORT
        or code.co_name == "__del__"
        or code.co_filename in _WEAK_REFERENCES
        or any(code is callback for callback in callbacks)
        for code in (frame.f_code for frame in stack_of(thread))
    )


def _raise(thread: int) -> None:
    what = ctypes.py_object(Interrupted)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)


Emit = Callable[[pb.Output], None]


class Capture:
    """Gives what the body of a `with` writes in this thread to a function instead: lines, and logs.

    Threads that the body starts write where they would without, unless they are given its context.
    """

    def __init__(self, emit: Callable[[pb.Output], None]) -> None:
        self._emit = emit
        self._lines: dict[pb.OutputStream, LineSplitter] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._token = _capture.set(self)
        _redirection.begin()

    def __exit__(self, *_: object) -> None:
        _redirection.end()
        _capture.reset(self._token)
        if not self._lines:
            return
        with self._lock:
            left = [(stream, lines.end()) for stream, lines in self._lines.items()]
        for stream, rest in left:
            self._show(stream, rest)

    def write(self, stream: pb.OutputStream, text: str) -> None:
        with self._lock:
            lines = self._lines.setdefault(stream, LineSplitter()).feed(text)
        self._show(stream, lines)

    def log(self, level: int, text: str) -> None:
        self._emit(pb.Output(stream=pb.OUTPUT_STREAM_LOG, level=level, text=text))

    def _show(self, stream: pb.OutputStream, lines: list[str]) -> None:
        for line in lines:
            self._emit(pb.Output(stream=stream, text=visible(line)))


_capture: ContextVar[Capture | None] = ContextVar("stratagem_capture", default=None)


class _Diverted(io.TextIOBase):
    """A stream of the process, without what belongs to functions."""

    def __init__(self, target: TextIO, stream: pb.OutputStream) -> None:
        self._target = target
        self._stream = stream

    def write(self, text: str) -> int:
        capture = _capture.get()
        if capture is None:
            return self._target.write(text)
        capture.write(self._stream, text)
        return len(text)

    def flush(self) -> None:
        # What diverted the stream may end after the stream is closed.
        with suppress(ValueError):
            self._target.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class _LastResort(logging.Handler):
    """The handler of records for which the program has none."""

    def __init__(self, other: logging.Handler | None) -> None:
        super().__init__(logging.WARNING)
        self._other = other

    def emit(self, record: logging.LogRecord) -> None:
        capture = _capture.get()
        if capture is not None:
            capture.log(record.levelno, self.format(record))
        elif self._other is not None:
            self._other.handle(record)


class _Redirection:
    """The streams of the process, diverted while any function runs in it."""

    def __init__(self) -> None:
        self._users = 0
        self._before: tuple[TextIO, TextIO, logging.Handler | None] | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            before = sys.stdout, sys.stderr, logging.lastResort
            # Made for each function, they would be a sixth of what it takes to run one.
            if before != self._before:
                self._before = before
                self._ours = (
                    _Diverted(sys.stdout, pb.OUTPUT_STREAM_STDOUT),
                    _Diverted(sys.stderr, pb.OUTPUT_STREAM_STDERR),
                    _LastResort(logging.lastResort),
                )
            sys.stdout, sys.stderr, logging.lastResort = self._ours

    def end(self) -> None:
        """Put back what is still ours: somebody else may have diverted it too."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            assert self._before is not None, "nothing was diverted"
            stdout, stderr, last_resort = self._ours
            if sys.stdout is stdout:
                sys.stdout = self._before[0]
            if sys.stderr is stderr:
                sys.stderr = self._before[1]
            if logging.lastResort is last_resort:
                logging.lastResort = self._before[2]


_redirection = _Redirection()


def run_closure(order: pb.Run, payload: bytes, loader: Loader) -> pb.Finished:
    """Load a function, call it, and return the outcome."""
    kind: pb.FailureKind = pb.FAILURE_KIND_INPUT
    try:
        function = loader.load(payload)
        kind = pb.FAILURE_KIND_FUNCTION
        result = function()
        if order.keep_as:
            loader.keep(order.keep_as, result)
            return pb.Finished(closure=order.closure)
        if order.use == pb.RESULT_USE_NONE:
            return pb.Finished(closure=order.closure)
        return pb.Finished(closure=order.closure, payload=loader.outcomes.dump(result))
    except Interrupted:
        raise
    except BaseException as error:  # also SystemExit: a function does not end a worker
        return failed(order.closure, kind, error, loader.outcomes)


def cancelled(closure: int, worker: str) -> pb.Finished:
    """Return the outcome of a function that was given up."""
    error = CancelledError(f"the function was given up on {worker}", task=worker)
    return failed(closure, pb.FAILURE_KIND_CANCELLED, error, PLAIN)


def failed(
    closure: int, kind: pb.FailureKind, error: BaseException, outcomes: OutcomeForm
) -> pb.Finished:
    """Return the outcome of a function that raised an exception."""
    # The first frame is `run_closure` above.
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    lines = traceback.format_exception(type(error), error, frames)
    return _failed(closure, kind, error, lines, outcomes)


def write_failed(closure: int, write: SentWrite) -> pb.Finished:
    """Return the outcome of a function of which a write has failed afterwards."""
    error = write.error
    assert error is not None, "the write has not failed"
    # The first frame of ours is `run_closure` above.
    called = takewhile(lambda line: line[0] != __file__, write.lines)
    lines = [
        "Traceback (most recent call last):\n",
        *traceback.format_list([traceback.FrameSummary(*line) for line in called][::-1]),
        *traceback.format_exception_only(type(error), error),
    ]
    return _failed(closure, pb.FAILURE_KIND_FUNCTION, error, lines, PLAIN)


def _failed(
    closure: int,
    kind: pb.FailureKind,
    error: BaseException,
    lines: Sequence[str],
    outcomes: OutcomeForm,
) -> pb.Finished:
    failure = pb.Failure(
        kind=kind,
        class_name=type(error).__qualname__,
        message=words_of(error),
        traceback="".join(lines),
    )
    outcomes.add_exception(error, failure)
    return pb.Finished(closure=closure, failure=failure)


_END_SECONDS = 1.0


class Job(NamedTuple):
    """Something to do for a session; `closure` is the function that it runs, if it runs one."""

    session: object
    closure: int | None
    work: Callable[[], None]


class Executor:
    """Does jobs one at a time, in the order in which they come. Thread-safe.

    Attributes:
        ended: How many functions ended, by the kind of failure, or as "OK".
        seconds: How long they ran.
    """

    def __init__(self, name: str) -> None:
        self.ended, self.seconds = Counter[str](), Histogram(SECONDS)
        self._counting = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._job: Job | None = None
        self._began = 0.0
        self._changing = threading.Lock()
        # One for each job that came, and one for the end. A condition has more to do.
        self._news: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Do a job when those before are done."""
        with self._changing:
            self._jobs.append(job)
        self._news.put(True)

    def count(self, end: pb.Finished, seconds: float) -> None:
        """Count a function that has ended."""
        how = "OK"
        if end.HasField("failure"):
            how = pb.FailureKind.Name(end.failure.kind).removeprefix("FAILURE_KIND_")
        with self._counting:
            self.ended[how] += 1
            self.seconds.observe(seconds)

    def withdraw(self, which: Callable[[Job], bool]) -> list[Job]:
        """Take back jobs that have not begun."""
        with self._changing:
            taken = [job for job in self._jobs if which(job)]
            self._jobs = deque(job for job in self._jobs if job not in taken)
            return taken

    @property
    def has_more(self) -> bool:
        """Whether there is something to do after what is being done."""
        return bool(self._jobs)

    @property
    def idle(self) -> bool:
        """Whether it does nothing, and has nothing to do."""
        with self._changing:
            return self._job is None and not self._jobs

    def current(self) -> RunningFunction | None:
        """Return which function it runs, since when and where; None while it runs none."""
        job, began = self._job, self._began
        if job is None or job.closure is None:
            return None
        return RunningFunction(
            number=job.closure,
            seconds=time.monotonic() - began,
            doing=whereabouts(self._thread.ident or 0),
        )

    @property
    def queued(self) -> int:
        """How many functions wait."""
        with self._changing:
            return sum(job.closure is not None for job in self._jobs)

    def close(self) -> None:
        """Let the thread end after the jobs there are; wait a moment for it."""
        self._news.put(False)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while self._news.get():
            with self._changing:
                # It may have been withdrawn.
                self._began = time.monotonic()
                self._job = job = self._jobs.popleft() if self._jobs else None
            try:
                if job is not None:
                    job.work()
            except Exception:
                LOG.exception("a job failed")
            finally:
                self._job = None
