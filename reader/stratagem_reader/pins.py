"""Holding a version while it is read, for as long as a lease allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from stratagem_proto.errors import DeadlineExceededError, VersionExpiredError

# A later version that is ready waits for pins that are there, and new ones wait for it, but no
# longer than this at a time: a pin may hold for long, and others want to read meanwhile.
_CLOSED_SECONDS = 0.05
_OPEN_SECONDS = 0.1


class Pin:
    """A hold on the present version.

    Args:
        version: The number of the version.
        lease: How many seconds it lasts at most.
    """

    def __init__(self, version: int, lease: float) -> None:
        self.version, self.lease = version, lease
        self.ends = time.monotonic() + lease
        # Called once it is left.
        self.left: Callable[[], None] | None = None

    @property
    def has_expired(self) -> bool:
        return time.monotonic() >= self.ends

    def require_valid(self) -> None:
        """Raise VersionExpiredError if its lease has run out."""
        if self.has_expired:
            raise VersionExpiredError(
                f"version {self.version} was pinned for {self.lease:g} s, which are over, so that "
                "values of a later version may have been read with its own; read again, in less "
                "time or by pin(lease=...) with a longer lease"
            )


class _Entered(NamedTuple):
    owner: Pins
    pin: Pin
    is_outer: bool


# The innermost last. A task of asyncio, and a thread, has its own.
_entered: ContextVar[tuple[_Entered, ...]] = ContextVar("stratagem_pins", default=())


class Pins:
    """The pins of one reader, and who waits for their end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._live: set[Pin] = set()
        self._closed = False
        # Since when a later version has waited.
        self._excluding_since: float | None = None

    def current(self) -> Pin | None:
        """Return the pin that the caller is in; None outside of any."""
        for entered in reversed(_entered.get()):
            if entered.owner is self:
                return entered.pin
        return None

    def enter(self, present: Callable[[], int], lease: float) -> Pin:
        """Pin the present version, or stay in the pin that the caller is in; then call `leave`.

        Args:
            present: Returns the number of the present version, which does not change meanwhile.
            lease: For how many seconds a new pin holds.
        """
        pin = self.current()
        is_outer = pin is None
        if pin is None:
            with self._changed:
                self._await_open()
                pin = Pin(present(), lease)
                self._live.add(pin)
        _entered.set((*_entered.get(), _Entered(self, pin, is_outer)))
        return pin

    def leave(self) -> Pin:
        """Leave the innermost pin, and return it."""
        *rest, entered = _entered.get()
        _entered.set(tuple(rest))
        if entered.is_outer:
            with self._changed:
                self._live.discard(entered.pin)
                self._changed.notify_all()
            if entered.pin.left is not None:
                entered.pin.left()
        return entered.pin

    def hold(
        self, present: Callable[[], int], lease: float, even_if_closed: bool = False
    ) -> Pin | None:
        """Pin the present version for whoever calls `release`; None while another one waits.

        It waits for nothing, and makes no caller's context one of a pin.

        Args:
            present: As of `enter`.
            lease: As of `enter`.
            even_if_closed: Whether the caller holds it already by another pin.
        """
        with self._changed:
            if self._closed and not even_if_closed:
                return None
            pin = Pin(present(), lease)
            self._live.add(pin)
            return pin

    def await_hold(self, present: Callable[[], int], lease: float) -> Pin:
        """As `hold`, once it can be."""
        with self._changed:
            self._await_open()
            pin = Pin(present(), lease)
            self._live.add(pin)
            return pin

    def release(self, pin: Pin) -> None:
        """End a pin of `hold`; a repetition does nothing."""
        with self._changed:
            self._live.discard(pin)
            if self._excluding_since is not None:
                self._changed.notify_all()

    @property
    def is_awaited_for(self) -> float:
        """For how many seconds a later version has waited for pins; 0 if none does."""
        since = self._excluding_since
        return 0.0 if since is None else time.monotonic() - since

    def _await_open(self) -> None:
        if not self._changed.wait_for(lambda: not self._closed, 60.0):
            raise DeadlineExceededError("a later version was not in place after 60 s")

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Wait until no pin holds any more, and let none begin until the context ends."""
        with self._changed:
            self._excluding_since = time.monotonic()
            while True:
                self._closed = True
                if self._wait_for_pins(_CLOSED_SECONDS):
                    break
                self._closed = False
                self._changed.notify_all()
                self._wait_for_pins(_OPEN_SECONDS)
        try:
            yield
        finally:
            with self._changed:
                self._closed, self._excluding_since = False, None
                self._changed.notify_all()

    def _wait_for_pins(self, seconds: float) -> bool:
        """Wait until the pins have ended or expired; return whether they have."""
        give_up_at = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            ends = [pin.ends for pin in self._live if pin.ends > now]
            if not ends or now >= give_up_at:
                return not ends
            self._changed.wait(min(min(ends), give_up_at) - now)
