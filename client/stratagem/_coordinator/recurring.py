"""Threads that act again and again, and what they do: the watchdog, the look at a resolver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from traceback import StackSummary
from typing import Protocol

from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import AlreadyExistsError, CancelledError, InvalidArgumentError
from stratagem_proto.whereabouts import stacks

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
        """Start the thread."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Let the thread end. May be called anywhere."""
        self._closed.put(None)

    def _run(self) -> None:
        with suppress(CancelledError):
            while not self._is_closed():
                self._action()

    def _is_closed(self) -> bool:
        try:
            self._closed.get(timeout=self._seconds)
        except Empty:
            return False
        return True


# A closure that has begun by then need not be asked for. Short closures all have.
_PATIENCE_SECONDS = 0.02


class Rebalancing:
    """Calls a function some time after it was asked to, and `at_end` once after `close`."""

    def __init__(self, rebalance: Callable[[], None], at_end: Callable[[], None]) -> None:
        self._rebalance = rebalance
        self._at_end = at_end
        self._wishes: SimpleQueue[bool] = SimpleQueue()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="stratagem-rebalancing", daemon=True).start()

    def ask(self) -> None:
        """Ask for the function to be called."""
        self._wishes.put(True)

    def close(self) -> None:
        """Let the thread end. May be called anywhere."""
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
            self._report()
        self._before = now

    def _report(self) -> None:
        _LOG.warning(
            "no scheduled function has ended for %g s: %s\n%s",
            self._seconds,
            self._state(),
            "".join(_stacks()),
        )


def _stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frames in stacks().items():
        yield f"\nThread {names.get(ident, ident)}:\n"
        lines = ((frame, frame.f_lineno) for frame in reversed(frames))
        yield from StackSummary.extract(lines).format()


class Members(Protocol):
    """The workers that a resolver's are compared with."""

    def add(self, index: int, address: str, *, late: bool) -> None:
        """Let a worker join; raise `AlreadyExistsError` if its index is taken."""

    def remove(self, index: int) -> None:
        """Let a worker leave; raise `InvalidArgumentError` if there is none."""


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
            self._remove(index)
        for index in now.keys() - self._known.keys():
            self._add(index, now[index])

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

    def _remove(self, index: int) -> None:
        # The program may have been first.
        with suppress(InvalidArgumentError):
            self._members.remove(index)

    def _add(self, index: int, address: str) -> None:
        try:
            self._members.add(index, address, late=True)
        except AlreadyExistsError:
            return
        self._known[index] = address
