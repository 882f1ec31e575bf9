"""A push that its program goes on without waiting for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar
from weakref import WeakMethod

from stratagem._ps_client.interruption import uninterrupted
from stratagem._ps_client.step_count import StepCount

_LOG = logging.getLogger("stratagem")

Answer = TypeVar("Answer")

Sending: TypeAlias = Callable[[], Callable[[], Answer]]
"""Sends a push; returns what waits for the answer, and repeats it if need be."""


class PushInFlight(Generic[Answer]):
    """One push at most. Thread-safe.

    A small one is sent by the thread that begins it, and its answer is taken in by the
    one that settles it: two threads that compute and decode at once would only take
    turns at the interpreter. A thread of its own has what is large, or was left alone.

    Args:
        steps: Of this process. The step of a push is not over until that is answered.
    """

    def __init__(self, steps: StepCount) -> None:
        self._steps = steps
        self._threads: ThreadPoolExecutor | None = None
        self._sent: _Sent[Answer] | None = None
        self._arrived: Callable[[Answer], None] = lambda _: None
        self._settling = threading.Lock()
        # Of two that are begun at once, nobody would wait for the first.
        self._beginning = threading.Lock()

    @property
    def is_out(self) -> bool:
        """Whether there is a push that was not settled."""
        return self._sent is not None

    def begin(
        self,
        send: Sending[Answer],
        arrived: Callable[[Answer], None],
        is_large: bool = False,
    ) -> None:
        """Sends a push, after the one before is settled.

        Args:
            send: Sends it.
            arrived: Takes the answer in, when the push is settled.
            is_large: Whether sending takes so long that another thread is to do it.

        Raises:
            StratagemError: As of `settle`, or a small one could not be sent.
        """
        with self._beginning:
            self.settle()
            self._begin(send, arrived, is_large)

    def _begin(
        self, send: Sending[Answer], arrived: Callable[[Answer], None], is_large: bool
    ) -> None:
        self._arrived = arrived
        step = self._steps.set_apart()
        if is_large:
            self._sent = _Sent(self._steps, step, lambda: send()())
            self.attend()
            return
        try:
            # What is sent and not known of would be waited for for ever.
            with uninterrupted():
                self._sent = _Sent(self._steps, step, send())
        except BaseException:
            with self._steps.taking_apart(step):
                raise

    def attend(self) -> None:
        """Has a thread wait for the answer, if there is a push."""
        sent = self._sent
        if sent is None or sent.has_landed:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="push-in-flight")
        # An interruption may go astray to a thread that is just being started.
        with uninterrupted():
            self._threads.submit(sent.wait)

    def wait(self) -> None:
        """Waits until the push is answered, if there is one; raises nothing."""
        if (sent := self._sent) is not None:
            sent.wait()

    def settle(self) -> None:
        """Waits until the push is answered, if there is one.

        Raises:
            StratagemError: It has failed. The next call does not raise that again.
        """
        if self._sent is None:
            return
        with self._settling:
            sent = self._sent
            if sent is not None:
                sent.wait()
                self._sent = None
                self._arrived(sent.answer())


def attending(flight: PushInFlight[Any]) -> Callable[[], None]:
    """Attends to a push; keeps nothing alive that its program has dropped."""
    attend = WeakMethod(flight.attend)

    def attend_if_used() -> None:
        if (used := attend()) is not None:
            used()

    return attend_if_used


class _Sent(Generic[Answer]):
    """A push whose answer whoever comes first waits for."""

    def __init__(self, steps: StepCount, step: int, wait: Callable[[], Answer]) -> None:
        self._steps, self._step, self._wait = steps, step, wait
        # How to get what came of it; None while that is not known.
        self._landed: Callable[[], Answer] | None = None
        self._landing = threading.Lock()

    @property
    def has_landed(self) -> bool:
        return self._landed is not None

    def wait(self) -> None:
        # Whoever is interrupted must not give it up.
        with uninterrupted(), self._landing:
            if self._landed is not None:
                return
            try:
                with self._steps.taking_apart(self._step):
                    answer = self._wait()
            except Exception as error:
                _LOG.warning("a push in flight failed, which is raised next: %s", error)
                self._landed = partial(_raise, error)
            else:
                self._landed = lambda: answer

    def answer(self) -> Answer:
        assert self._landed is not None, "it has landed before"
        return self._landed()


def _raise(error: Exception) -> NoReturn:
    raise error
