"""Locks of variables, taken in one canonical order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


class LockUse(NamedTuple):
    """What locks are held for.

    Attributes:
        client: The label of the client whose request it is.
        work: What the server does for it, as in "update".
    """

    client: str
    work: str


_UNKNOWN = LockUse("", "work")


@dataclass(frozen=True)
class LockWait:
    """A wait for a lock.

    Attributes:
        name: The lock.
        use: What it is wanted for.
        holder: Returns what keeps it: the work of the holder, or of whom the holder waits for.
    """

    name: str
    use: LockUse
    holder: Callable[[], LockUse]


Noted: TypeAlias = Callable[[LockWait], AbstractContextManager[None]]
"""Lets people see a wait while the context is open."""


class _Turn(NamedTuple):
    comes: asyncio.Future[None]
    holding: Holding


@dataclass
class _Contended:
    """A held lock that somebody waits for, or waited for."""

    holder: Holding
    turns: deque[_Turn] = field(default_factory=deque)


def _unnoted(_: LockWait) -> AbstractContextManager[None]:
    return nullcontext()


class VariableLocks:
    """One lock for each name; an entry exists only while the lock is held.

    Args:
        noted: Entered for each wait. Locks that are free cost nothing of it.
    """

    def __init__(self, noted: Noted = _unnoted) -> None:
        self._held: dict[str, Holding | _Contended] = {}
        # By lock: a function of the holder, to be called when another task waits for the lock.
        self._on_contention: dict[str, Callable[[], None]] = {}
        self._noted = noted

    def are_free(self, names: Iterable[str]) -> bool:
        """Return whether none of these locks is held."""
        return self._held.keys().isdisjoint(names)

    def take(self, names: Iterable[str], holding: Holding) -> bool:
        """Take locks if all of them are free, and return whether they were."""
        if not self._held.keys().isdisjoint(names):
            return False
        self._held.update(dict.fromkeys(names, holding))
        return True

    async def acquire(self, name: str, holding: Holding) -> None:
        """Wait for a lock."""
        held = self._held.get(name)
        if held is None:
            self._held[name] = holding
            return
        if isinstance(held, Holding):
            held = self._held[name] = _Contended(held)
        comes = asyncio.get_running_loop().create_future()
        held.turns.append(_Turn(comes, holding))
        if notify := self._on_contention.get(name):
            notify()
        holding.waits_for = name
        try:
            with self._noted(LockWait(name, holding.use, lambda: self._keeper(name))):
                await comes
        except BaseException:
            if comes.done() and not comes.cancelled():
                self.release([name])
            raise
        finally:
            holding.waits_for = None

    def _keeper(self, name: str) -> LockUse:
        """Return the use that a lock is not free for; locks are never waited for in a circle."""
        held = self._held.get(name)
        if held is None:
            return _UNKNOWN
        holder = held if isinstance(held, Holding) else held.holder
        return holder.use if holder.waits_for is None else self._keeper(holder.waits_for)

    def notify_when_contended(self, names: Iterable[str], notify: Callable[[], None]) -> None:
        """Call a function whenever another task begins to wait for a lock, until its release.

        Args:
            names: The locks, which the caller holds.
            notify: The function; it is called at once if a task waits already.
        """
        for name in names:
            self._on_contention[name] = notify
            held = self._held[name]
            if isinstance(held, _Contended) and held.turns:
                notify()

    def release(self, names: Iterable[str]) -> None:
        """Release locks, or hand each to the task that has waited longest for it."""
        for name in names:
            self._on_contention.pop(name, None)
            held = self._held[name]
            if not isinstance(held, _Contended) or not _hand_over(held):
                del self._held[name]


def _hand_over(held: _Contended) -> bool:
    """Give a lock to the next task that still waits for it; return whether there is one."""
    while held.turns:
        comes, held.holder = held.turns.popleft()
        if not comes.done():
            held.holder.waits_for = None
            comes.set_result(None)
            return True
    return False


class Holding:
    """A context that holds several locks at once.

    All callers take locks in the order of their names, so that there are no deadlocks. The set of
    wanted locks may change while the caller waits; the context holds those that are wanted when it
    is entered.

    Args:
        locks: All locks.
        wanted: Returns the names of the locks to hold, sorted and distinct.
        use: What they are held for.

    Attributes:
        use: What they are held for.
        waits_for: The lock that it waits for; None while it waits for none.
    """

    def __init__(
        self, locks: VariableLocks, wanted: Callable[[], list[str]], use: LockUse = _UNKNOWN
    ) -> None:
        self._locks, self._wanted, self.use = locks, wanted, use
        self.waits_for: str | None = None
        self._held: list[str] = []

    async def acquire(self) -> None:
        """Wait for all locks."""
        wanted = self._wanted()
        if self._locks.take(wanted, self):
            self._held = [*wanted]
            return
        try:
            while self._held != (wanted := self._wanted()):
                self.release()
                for name in wanted:
                    await self._locks.acquire(name, self)
                    self._held.append(name)
        except BaseException:
            self.release()
            raise

    __aenter__ = acquire

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release all locks."""
        held, self._held = self._held, []
        self._locks.release(reversed(held))

    def notify_when_contended(self, notify: Callable[[], None]) -> None:
        """Call a function whenever another task begins to wait for one of the locks.

        A holder that would keep the locks for long can then release them early.

        Args:
            notify: The function; it is called at once if a task waits already. It may be called
                more than once.
        """
        self._locks.notify_when_contended(self._held, notify)
