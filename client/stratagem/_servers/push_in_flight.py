"""A push that its program goes on without waiting for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Generic, TypeVar

from stratagem._servers.interruption import uninterrupted
from stratagem._servers.step_count import StepCount

_LOG = logging.getLogger("stratagem")

Answer = TypeVar("Answer")


class PushInFlight(Generic[Answer]):
    """One push at most; sent by a thread of its own, which repeats it if need be.

    Thread-safe.

    Args:
        steps: Of this process. The step of a push is not over until that is answered.
    """

    def __init__(self, steps: StepCount) -> None:
        self._steps = steps
        self._threads: ThreadPoolExecutor | None = None
        self._sent: Future[Answer] | None = None
        self._arrived: Callable[[Answer], None] = lambda _: None
        self._settling = threading.Lock()

    @property
    def is_out(self) -> bool:
        """Whether there is a push that was not settled."""
        return self._sent is not None

    def begin(
        self, send: Callable[[], Answer], arrived: Callable[[Answer], None]
    ) -> None:
        """Sends a push, after the one before is settled.

        Args:
            send: Sends it and returns the answer.
            arrived: Takes the answer in, when the push is settled.

        Raises:
            StratagemError: As of `settle`.
        """
        self.settle()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="push-in-flight")
        self._arrived = arrived
        # An interruption may go astray to a thread that is just being started.
        with uninterrupted():
            work = partial(self._send, self._steps.set_apart(), send)
            self._sent = self._threads.submit(work)

    def _send(self, step: int, send: Callable[[], Answer]) -> Answer:
        try:
            with self._steps.taking_apart(step):
                return send()
        except Exception as error:
            _LOG.warning("a push in flight failed, which is raised next: %s", error)
            raise

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
                wait([sent])
                self._sent = None
                self._arrived(sent.result())
