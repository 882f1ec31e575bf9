"""A push that its program goes on without waiting for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, NoReturn, TypeAlias, TypeVar

import torch

from stratagem._core.waiting import uninterrupted
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.step_count import StepCount
from stratagem_proto.wire.placed import SegmentLayout

_LOG = logging.getLogger("stratagem")

Answer = TypeVar("Answer")

Sending: TypeAlias = Callable[[], Callable[[], Answer]]
"""Sends a push; returns what waits for the answer, and repeats it if need be."""


class PushInFlight(Generic[Answer]):
    """One push at most, ahead of a group's other requests. Thread-safe.

    The thread that begins a small push sends it, and the one that finishes it takes in the answer:
    two threads that compute and decode at once would only take turns at the interpreter. A thread
    of its own has what is large, or was left alone. The step of a push is not over until that is
    answered.
    """

    def __init__(self, steps: StepCount) -> None:
        self._steps = steps
        self._threads: ThreadPoolExecutor | None = None
        self._sent: _Sent[Answer] | None = None
        self._arrived: Callable[[Answer], None] = lambda _: None
        self._taking_in = threading.Lock()
        # Of two that are begun at once, nobody would wait for the first.
        self._beginning = threading.Lock()

    @property
    def is_out(self) -> bool:
        """Whether there is a push whose answer was not taken in."""
        return self._sent is not None

    def begin(
        self, send: Sending[Answer], arrived: Callable[[Answer], None], is_large: bool = False
    ) -> None:
        """Send a push, after the one before is finished.

        Args:
            send: Sends it.
            arrived: Takes the answer in, when the push is finished.
            is_large: Whether sending takes so long that another thread is to do it.

        Raises:
            StratagemError: As of `finish`, or a small one could not be sent.
        """
        with self._beginning:
            self.finish()
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
        """Have a thread wait for the answer, if there is a push."""
        sent = self._sent
        if sent is None or sent.is_answered:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="push-in-flight")
        # An interruption may go astray to a thread that is just being started.
        with uninterrupted():
            self._threads.submit(sent.wait)

    def wait(self) -> None:
        """Wait until the push is answered, if there is one; raise nothing."""
        if (sent := self._sent) is not None:
            with self._steps.pace.waiting():
                sent.wait()

    def finish(self) -> None:
        """Wait for the answer and take it in, if there is a push.

        Raises:
            StratagemError: The push has failed. The next call does not raise that.
        """
        if self._sent is None:
            return
        with self._taking_in:
            sent = self._sent
            if sent is not None:
                with self._steps.pace.waiting():
                    sent.wait()
                self._sent = None
                self._arrived(sent.answer())


class _Sent(Generic[Answer]):
    """A push whose answer whoever comes first waits for."""

    def __init__(self, steps: StepCount, step: int, wait: Callable[[], Answer]) -> None:
        self._steps, self._step, self._wait = steps, step, wait
        # How to get what came of it; None while that is not known.
        self._answer: Callable[[], Answer] | None = None
        self._waiting = threading.Lock()

    @property
    def is_answered(self) -> bool:
        return self._answer is not None

    def wait(self) -> None:
        # Whoever is interrupted must not give it up.
        with uninterrupted(), self._waiting:
            if self._answer is not None:
                return
            try:
                with self._steps.taking_apart(self._step):
                    answer = self._wait()
            except Exception as error:
                _LOG.warning("a push in flight failed, which is raised next: %s", error)
                self._answer = partial(_raise, error)
            else:
                self._answer = lambda: answer

    def answer(self) -> Answer:
        assert self._answer is not None, "it was waited for"
        return self._answer()


def _raise(error: Exception) -> NoReturn:
    raise error


class OwnCopies:
    """Copies of gradients, which nobody changes while their push is in flight.

    Copies take the memory of those before where they are alike, so the push before must be
    finished.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[SegmentLayout, Sequence[torch.Tensor]]] = {}

    def of(self, server: int, update: Request[list[int]]) -> Sequence[torch.Tensor]:
        """Return copies of the tensors that a server is sent."""
        layout, copies = self._last.get(server, (None, ()))
        if layout is None or layout is not update.layout:
            return self._made(server, update)
        with torch.no_grad():
            torch._foreach_copy_([*copies], [*update.tensors])
        return copies

    def _made(self, server: int, update: Request[list[int]]) -> Sequence[torch.Tensor]:
        copies = [tensor.detach().clone() for tensor in update.tensors]
        if update.layout is not None:
            self._last[server] = update.layout, copies
        return copies
