"""The lock under which one request at a time changes a server.

Ctrl-C may come between any two instructions, also between those that would take a lock and those
that would see it released. So an object stands for holding the lock, and dropping that object
releases it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import get_ident

from stratagem._ps_client.transports.call import Cancellable


class Permit:
    """The permit to change a server, until it is released, revoked or dropped.

    Attributes:
        thread: The thread that holds it; 0 while none does.
        call: The call that was made under it and is cancelled with it.
    """

    def __init__(self, lock: MutationLock) -> None:
        self._lock: Callable[[], MutationLock | None] = weakref.ref(lock)
        self.thread = 0
        self.call: Cancellable | None = None

    def release(self) -> None:
        """Let the next request have the permit; do nothing if it was revoked."""
        if (lock := self._lock()) is not None:
            self.call, self.thread = None, 0
            lock.free.put(self)

    def revoke(self) -> None:
        """Cancel the call, and have another permit take the place of this one."""
        lock, self._lock = self._lock(), _no_lock
        call, self.call = self.call, None
        if call is not None:
            call.cancel()
        if lock is not None:
            lock.issue()

    def __del__(self) -> None:
        self.revoke()


def _no_lock() -> None:
    """Stand for the lock of a permit that was revoked."""


class MutationLock:
    """Hands out the only permit. Thread-safe.

    Attributes:
        free: The permit, while no thread holds it.
        last: A weak reference to the permit that was issued last.
    """

    def __init__(self) -> None:
        self.free: SimpleQueue[Permit] = SimpleQueue()
        self.issue()

    def issue(self) -> None:
        """Make a new permit, because the last one was revoked."""
        permit = Permit(self)
        self.last = weakref.ref(permit)
        self.free.put(permit)

    def acquire(self) -> Permit:
        """Wait for the permit and return it; the caller holds it from now on."""
        thread = get_ident()
        try:
            permit = self.free.get_nowait()
        except Empty:
            permit = self._awaited()
        permit.thread = thread
        return permit

    def _awaited(self) -> Permit:
        self.release_interrupted()
        return self.free.get()

    def release_interrupted(self) -> None:
        """Revoke the permit that the calling thread still holds, if it holds one.

        The thread was interrupted while it held the permit: the traceback keeps the permit for as
        long as the exception is handled or kept.
        """
        last = self.last()
        if last is not None and last.thread == get_ident():
            last.revoke()
