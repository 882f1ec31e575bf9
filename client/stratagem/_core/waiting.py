"""Waits for other processes: where they are not interrupted, and what the log tells of them.

A thread that waits for a socket takes no exception before it has waited, and one that comes in the
midst of gRPC's code leaves locks taken, and with them a channel, for ever.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from stratagem._core.contexts import ContextVarScope

Value = TypeVar("Value")


class Guard:
    """Puts an interruption of this thread off until it may come. Thread-safe.

    Args:
        interrupted: What is then raised.
    """

    def __init__(self, interrupted: type[BaseException]) -> None:
        self._interrupted = interrupted
        self._thread = threading.get_ident()
        self._changing = threading.Lock()
        self._give_up: Callable[[], object] | None = None
        self._due = False

    @property
    def is_mine(self) -> bool:
        """Whether this is its thread, and not one that the function has started."""
        return threading.get_ident() == self._thread

    def strike(self, interrupt: Callable[[], bool]) -> bool:
        """Interrupt the thread, from another one.

        Args:
            interrupt: Does so at once, and returns whether it could. Where that may not be, what
                the thread waits for is given up instead, and it is interrupted after that.

        Returns:
            Whether that was done; if not, it is to be tried again.
        """
        with self._changing:
            give_up = self._give_up
            if give_up is None:
                return interrupt()
            self._due = True
        give_up()
        return True

    @contextmanager
    def held_off(self, give_up: Callable[[], object]) -> Iterator[None]:
        """Let no interruption come while the body runs, nor while one around it does.

        Args:
            give_up: Ends what the body waits for; may be called from any thread. That of a body
                around it counts.
        """
        if self._give_up is not None:
            yield
            return
        try:
            with self._changing:
                self._give_up = give_up
            yield
        finally:
            self._take_due()

    def awaited(self, wait: Callable[[], Value], give_up: Callable[[], object]) -> Value:
        """Return what is waited for, as by `held_off`, whose generator takes longer."""
        if self._give_up is not None:
            return wait()
        try:
            with self._changing:
                self._give_up = give_up
            return wait()
        finally:
            self._take_due()

    def _take_due(self) -> None:
        """Let interruptions come again, and raise the one that is due."""
        with self._changing:
            self._give_up = None
            due, self._due = self._due, False
        if due:
            raise self._interrupted


_present: ContextVar[Guard | None] = ContextVar("stratagem_guard", default=None)


def guarded_by(guard: Guard) -> AbstractContextManager[None]:
    """Let this thread run a function that may be interrupted."""
    return ContextVarScope(_present, guard)


def is_interruptible() -> bool:
    """Return whether this thread runs a function that may be interrupted."""
    guard = _present.get()
    return guard is not None and guard.is_mine


_FREE: AbstractContextManager[None] = nullcontext()


def uninterrupted(give_up: Callable[[], object] = lambda: None) -> AbstractContextManager[None]:
    """Let no interruption come while the body runs; as `Guard.held_off`."""
    guard = _present.get()
    return _FREE if guard is None or not guard.is_mine else guard.held_off(give_up)


def awaited(wait: Callable[[], Value], give_up: Callable[[], object]) -> Value:
    """Return what is waited for, uninterrupted; as `Guard.held_off`."""
    guard = _present.get()
    if guard is None or not guard.is_mine:
        return wait()
    return guard.awaited(wait, give_up)


def abandonable(messages: Iterator[bytes], give_up: Callable[[], object]) -> Iterator[bytes]:
    """Yield the same messages; an interruption gives up the call, not the thread.

    Args:
        messages: What is waited for.
        give_up: Ends it, from any thread.
    """
    while True:
        with uninterrupted(give_up):
            message = next(messages, None)
        if message is None:
            return
        yield message


_LOG = logging.getLogger("stratagem")

_FIRST_SECONDS = 5.0
_NEXT_SECONDS = 30.0
_LONGEST_SECONDS = 600.0


class AwaitedTask(NamedTuple):
    """A task that has to do something first.

    Attributes:
        task: As in "/job:worker/task:0".
        missing: What it has to do, as in "the program of worker:0".
        seconds: For how long it has been at that; 0 if that is not known.
    """

    task: str
    missing: str
    seconds: float = 0.0

    def __str__(self) -> str:
        since = f" ({self.seconds:.1f} s)" if self.seconds else ""
        return f"the {self.missing} of {self.task}{since}"


@dataclass(frozen=True)
class Awaited:
    """What a wait is for, for those who look for the cause of a standstill.

    Attributes:
        subject: What the one who waits wants.
        tasks: Returns the tasks that have to do something first. Called in other threads.
        reason: As in the message `Waiter`.
        changes: Whether the tasks change while it lasts, so that the log has to tell of them.
    """

    subject: str
    tasks: Callable[[], Sequence[AwaitedTask]]
    reason: str = "program"
    changes: bool = True

    @classmethod
    def one_task(cls, task: str, subject: str, missing: str) -> Awaited:
        """Return that a single task has to do something, which the words of the wait say."""
        only = AwaitedTask(task, missing)
        return cls(subject, lambda: [only], changes=False)


_MOST_LISTED = 8


def listed(tasks: Sequence[AwaitedTask]) -> str:
    """Return what tasks have to do, in one line; of many, the first ones."""
    more = len(tasks) - _MOST_LISTED
    rest = f" and {more} more" if more > 0 else ""
    return ", ".join(map(str, tasks[:_MOST_LISTED])) + rest


class Wait:
    """A wait for another process, from `begin` to `end` or as long as a `with` block.

    After 5 s the log says who waits, for whom, since when and until when; again after 30 s, and
    then ever less often. Several waits alike in a process say it once. One that is dropped is over.

    Args:
        who: Who waits, as in "/job:worker/task:1".
        whom: For whom or what, and where that is looked for.
        seconds: How long at most; None for as long as it takes.
        awaited: What others have to do first, if tasks of the cluster have to.

    Attributes:
        who: Who waits.
        whom: For whom or what; may change.
        began: When it began, by the monotonic clock.
        due: When it is to be told of, by the same clock.
        over: Whether it has ended.
        awaited: What others have to do first; None if that is not known.
        failure: How the last attempt failed, of a wait for one that succeeds; "" for no attempts.
    """

    def __init__(
        self,
        who: str,
        whom: str,
        seconds: float | None = None,
        awaited: Awaited | None = None,
    ) -> None:
        self.who, self.whom, self.awaited = who, whom, awaited
        self.began = self.due = math.inf
        self.over = False
        self.failure = ""
        self._seconds = math.inf if seconds is None else seconds
        self._pause = _NEXT_SECONDS

    @property
    def text(self) -> str:
        """Who waits for whom."""
        return f"{self.who} waits for {self.whom}"

    def begin(self, ago: float = 0.0) -> None:
        """Begins now, or began so many seconds ago."""
        self.began = time.monotonic() - ago
        self.due = self.began + _FIRST_SECONDS
        _teller.add(self)

    def end(self) -> None:
        """Says nothing more; may be called again, anywhere."""
        self.over = True

    def log(self, now: float) -> None:
        """Write the line that is due."""
        waited = now - self.began
        end, missing = "for as long as it takes", ""
        if self._seconds != math.inf:
            end = f"until {_clock(self._seconds - waited)}"
        if self.awaited is not None and self.awaited.changes:
            missing = f". Missing: {listed(self.awaited.tasks()) or 'nothing that is known'}"
        _LOG.warning(
            "%s since %s (%.0f s), %s%s%s",
            self.text,
            _clock(-waited),
            waited,
            end,
            missing,
            f". The last attempt: {self.failure}" if self.failure else "",
            extra={"event": "waiting"},
        )
        self.due, self._pause = (now + self._pause, min(2 * self._pause, _LONGEST_SECONDS))

    def __enter__(self) -> Wait:
        # One that began before goes on.
        if self.began == math.inf:
            self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _clock(seconds: float) -> str:
    """The time of day so many seconds from now."""
    then = time.localtime(time.time() + seconds)
    return time.strftime("%Y-%m-%d %H:%M:%S" if abs(seconds) > 43200 else "%X", then)


class _Teller:
    """Tells of the waits of a process, by a thread while there are any."""

    def __init__(self) -> None:
        # Weakly, and one that ends only says so: whoever waits may be interrupted anywhere, and the
        # garbage collector may end a wait while this is looked at.
        self._waits: WeakSet[Wait] = WeakSet()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf

    def add(self, wait: Wait) -> None:
        """Tells of a wait from when it is due."""
        with uninterrupted(), self._changed:
            self._waits.add(wait)
            if self._thread is None or not self._thread.is_alive():
                self._start()
            elif wait.due < self._wakes_at:
                self._changed.notify()

    def for_tasks(self) -> list[Wait]:
        """Return the waits for tasks."""
        with self._changed:
            return [wait for wait in self._waits if wait.awaited and not wait.over]

    def _start(self) -> None:
        self._wakes_at = math.inf
        thread = threading.Thread(target=self._run, name="stratagem-waiting", daemon=True)
        # A process that ends starts no more threads, and waits all the same.
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while True:
            for wait in self._due():
                wait.log(time.monotonic())
            with self._changed:
                speaking = self._speaking()
                if not speaking:
                    self._thread = None
                    return
                self._wakes_at = min(wait.due for wait in speaking)
                self._changed.wait(max(self._wakes_at - time.monotonic(), 0.0))

    def _due(self) -> list[Wait]:
        now = time.monotonic()
        with self._changed:
            return [wait for wait in self._speaking() if wait.due <= now]

    def _speaking(self) -> list[Wait]:
        """The first one of each text."""
        found: dict[str, Wait] = {}
        waits = [wait for wait in self._waits if not wait.over]
        for wait in sorted(waits, key=lambda one: one.began):
            found.setdefault(wait.text, wait)
        return list(found.values())


_teller = _Teller()


def waits_for_tasks() -> list[Wait]:
    """Return the waits of this process for other tasks."""
    return _teller.for_tasks()


def _renew() -> None:
    """A forked process has none of its parent's threads."""
    global _teller
    _teller = _Teller()


os.register_at_fork(after_in_child=_renew)
