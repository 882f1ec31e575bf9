"""The lock of a coordinator, the threads that wait under it, and those that act again and again."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from traceback import StackSummary
from typing import Protocol

from stratagem._core.waiting import Wait
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
)
from stratagem_rpc.whereabouts import stacks


class Patience:
    """The seconds that one call has, which errors name; None for as long as it takes."""

    def __init__(self, call: str, seconds: float | None = None) -> None:
        if seconds is not None and not seconds >= 0:
            raise InvalidArgumentError(
                f"timeout of {call} is {seconds}; give seconds, 0 to wait for nothing, "
                "or None to wait for as long as it takes"
            )
        self._call = call
        self._seconds = math.inf if seconds is None else seconds
        self._end = time.monotonic() + self._seconds

    @property
    def left(self) -> float | None:
        """Seconds that are left; None for any number."""
        left = self._end - time.monotonic()
        return None if left == math.inf else max(left, 0.0)

    def exceeded(self, missing: str) -> DeadlineExceededError:
        """Return the error of a call that has waited for too long."""
        return DeadlineExceededError(f"{self._call} waited for {self._seconds:g} s: {missing}")


class ExclusiveEntry(AbstractContextManager[None]):
    """Keeps other threads out while the body runs; serves once.

    A generator would set the traceback of what the body raises, which not every class of exceptions
    allows.
    """

    def __init__(self, lock: threading.Lock, patience: Patience) -> None:
        self._lock, self._patience = lock, patience

    def __enter__(self) -> None:
        left = self._patience.left
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise self._patience.exceeded("another thread joins or schedules")

    def __exit__(self, *error: object) -> None:
        self._lock.release()


# Shorter waits are usual, and nobody is told of them.
QUIET_SECONDS = 0.5


class Monitor:
    """A lock, to be entered, under which threads wait until something holds.

    Args:
        hurry: Called before a thread waits.
        make_wait: Makes, of what a thread waits for and how long it may, the wait that people see.
    """

    def __init__(
        self, hurry: Callable[[], None], make_wait: Callable[[str, Patience], Wait]
    ) -> None:
        self._hurry, self._make_wait = hurry, make_wait
        self._changed = threading.Condition()
        self._awaited: list[Callable[[], bool]] = []
        self._closed = False

    def __enter__(self) -> None:
        self._changed.acquire()

    def __exit__(self, *error: object) -> None:
        self._changed.release()

    # All that follows is done under the lock.

    def wait(self, condition: Callable[[], bool], subject: str, patience: Patience) -> bool:
        """Let the lock go until a condition holds or patience ends; return whether it holds.

        Args:
            condition: The condition.
            subject: What it is, for people.
            patience: How long at most.

        Raises:
            CancelledError: The coordinator is closed.
        """
        holds = True
        if not self._closed and not condition():
            self._hurry()
            holds = self._wait(lambda: self._closed or condition(), subject, patience)
        self.require_open()
        return holds

    def _wait(self, holds: Callable[[], bool], subject: str, patience: Patience) -> bool:
        self._awaited.append(holds)
        try:
            left = patience.left
            quiet = QUIET_SECONDS if left is None else min(left, QUIET_SECONDS)
            if self._changed.wait_for(holds, quiet):
                return True
            wait = self._make_wait(subject, patience)
            wait.begin(ago=quiet)
            with wait:
                return self._changed.wait_for(holds, patience.left)
        finally:
            self._awaited.remove(holds)

    def wake(self) -> None:
        """Let threads go on whose condition holds."""
        # To wake a thread for nothing takes longer than all else that a closure needs.
        if any([holds() for holds in self._awaited]):
            self._changed.notify_all()

    def close(self) -> None:
        """Let all threads go on, by an error."""
        self._closed = True
        self.wake()

    def require_open(self) -> None:
        """Raise `CancelledError` if the coordinator is closed."""
        if self._closed:
            raise CancelledError(
                "the coordinator is closed, because its strategy is, or the program "
                "ends; schedule functions before"
            )


_LOG = logging.getLogger("stratagem")


class Recurring:
    """Calls a function every so many seconds, until it raises `CancelledError`."""

    def __init__(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        self._name = name
        self._seconds = seconds
        self._action = action
        # Of this kind because the garbage collector may call `close` anywhere.
        self._closed: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def close(self) -> None:
        self._closed.put(None)

    def _run(self) -> None:
        with suppress(CancelledError):
            while True:
                try:
                    return self._closed.get(timeout=self._seconds)
                except Empty:
                    self._action()


# A closure that has begun by then need not be asked for. Short closures all have.
_PATIENCE_SECONDS = 0.02


class Rebalancing:
    """Calls a function some time after it was asked to, and `at_end` once after `close`."""

    def __init__(self, rebalance: Callable[[], None], at_end: Callable[[], None]) -> None:
        self._rebalance = rebalance
        self._at_end = at_end
        self._wishes: SimpleQueue[bool] = SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._run, name="stratagem-rebalancing", daemon=True).start()

    def ask(self) -> None:
        self._wishes.put(True)

    def close(self) -> None:
        self._wishes.put(False)

    def _run(self) -> None:
        while self._wishes.get():
            time.sleep(_PATIENCE_SECONDS)
            self._rebalance()
        self._at_end()


class Watchdog:
    """Logs where everything stands while nothing ends. Spec: FLT-13.

    `progress` returns another number whenever something has ended; None if there is nothing to do.
    """

    def __init__(
        self, seconds: float, progress: Callable[[], int | None], state: Callable[[], str]
    ) -> None:
        self._seconds = seconds
        self._progress = progress
        self._state = state
        self._before = progress()

    def look(self) -> None:
        """Look once; to be called after so many seconds each."""
        now = self._progress()
        if now is not None and now == self._before:
            _LOG.warning(
                "no scheduled function has ended for %g s: %s\n%s",
                self._seconds,
                self._state(),
                "".join(_stacks()),
            )
        self._before = now


def _stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frames in stacks().items():
        yield f"\nThread {names.get(ident, ident)}:\n"
        lines = ((frame, frame.f_lineno) for frame in reversed(frames))
        yield from StackSummary.extract(lines).format()


class Members(Protocol):
    """The workers that a resolver's are compared with.

    `add` raises `AlreadyExistsError` if the index is taken, `remove` raises
    `InvalidArgumentError` if there is no such worker.
    """

    def add(self, index: int, address: str, *, late: bool) -> None: ...

    def remove(self, index: int) -> None: ...


def workers_of(resolver: ClusterResolver) -> dict[int, str]:
    """Return the addresses of the workers that a resolver knows now, by index."""
    cluster = resolver.cluster_spec()
    indices = cluster.task_indices("worker") if "worker" in cluster.jobs else []
    return {index: cluster.task_address("worker", index) for index in indices}


class ResolverWatch:
    """Carries out what changes in a resolver, and nothing else.

    A worker that joined or left otherwise stays in or out. One whose address is another leaves, and
    the one that is there joins. The workers that are `known` at first have joined.
    """

    def __init__(
        self, resolver: ClusterResolver, members: Members, known: Mapping[int, str]
    ) -> None:
        self._resolver = resolver
        self._members = members
        self._known = dict(known)
        self._fails = False

    def look(self) -> None:
        """Look at the resolver once.

        A worker joins by a later look if the one that had its index has not left yet.

        Raises:
            CancelledError: The members take no changes any more.
        """
        now = self._now()
        for index in [one for one in self._known if self._known[one] != now.get(one)]:
            del self._known[index]
            # The program may have been first.
            with suppress(InvalidArgumentError):
                self._members.remove(index)
        for index in now.keys() - self._known.keys():
            with suppress(AlreadyExistsError):
                self._members.add(index, now[index], late=True)
                self._known[index] = now[index]

    def _now(self) -> Mapping[int, str]:
        """Return the resolver's workers, or those of before if it fails, as it may."""
        try:
            found = workers_of(self._resolver)
        except Exception as error:
            if not self._fails:
                _LOG.warning("the workers stay as they are: %s", error)
            self._fails = True
            return self._known
        self._fails = False
        return found
