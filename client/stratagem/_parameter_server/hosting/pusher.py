"""Pushing the gradients of a step: alone, with the read of the next run, or in flight.

All three send the same request. They differ in what it asks for behind the step, and in who waits
for the answer; `Pusher` chooses for each push, since only some runs gain by the faster ones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum, auto
from functools import partial
from itertools import chain
from operator import is_
from typing import Generic, TypeAlias, TypeVar

import torch

from stratagem._core.waiting import uninterrupted
from stratagem._parameter_server.hosting.push import (
    CopyGuard,
    PrefetchedValues,
    PullMode,
    Push,
)
from stratagem._parameter_server.hosting.steps import StepTracker
from stratagem._parameter_server.variables.variable import RemoteVariable, unread
from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.group import Order, ServerGroup
from stratagem._ps_client.requests.reads import (
    NOTHING_FOLLOWS,
    Answer,
    Reading,
    ReadsAfterUpdate,
    and_read,
    following,
)
from stratagem._ps_client.requests.request import Request
from stratagem_proto.v1.consistency_pb2 import StepBegin
from stratagem_proto.wire.placed import SegmentLayout

_LOG = logging.getLogger("stratagem")

# Values wait in memory of their own for the step that takes them. What takes longer to copy from
# there than a request takes is not worth it.
_MOST_PREFETCHED_BYTES = 8 << 20

# What takes longer to send than another thread takes to begin, is sent by that one.
_MOST_SENT_BYTES = 1 << 20

Answers: TypeAlias = Mapping[int, Answer]


class PushMode(Enum):
    """How a push is sent."""

    PLAIN = auto()
    """Alone; what it has stepped is read with the answer."""

    FUSED = auto()
    """With a read of what the next run starts with."""

    IN_FLIGHT = auto()
    """Likewise, and the program does not wait for the answer."""


class Pusher:
    """How the gradients of one worker reach the servers, and what comes back.

    Each run begins with `refresh`. What it computes is sent by `apply`, once for each step of an
    optimizer. Anybody may call the other two in between.

    Args:
        servers: The servers.
        step_tracker: How far this worker is in its steps.
        guard: Entered while values come into copies.
        mode: Whether answers bring all that the next run starts with.
    """

    def __init__(
        self, servers: ServerGroup, step_tracker: StepTracker, guard: CopyGuard, mode: PullMode
    ) -> None:
        self._servers, self._step_tracker = servers, step_tracker
        self._guard, self._mode = guard, mode
        self._values = PrefetchedValues(servers, guard)
        # The run that pushes are a part of: whether it is one, and not a step outside of runs;
        # whether the one before had one push at most; and how many it has had.
        self._is_run = self._follows_lone_push = True
        self._pushes = 0
        # How to read what a plain push has stepped, by optimizer and server.
        self._stepped_reads: dict[tuple[str, int], ReadsAfterUpdate] = {}
        self._copies = OwnCopies()
        self._flight: PushInFlight[Answers] = PushInFlight(servers.steps)
        if mode is PullMode.IN_FLIGHT:
            servers.send_first(self._flight)

    def refresh(self, variables: Sequence[RemoteVariable] | None) -> bool:
        """Begin a run.

        Args:
            variables: What the run needs copies of; None for a step outside of runs, whose copies
                are fresh by agreement.

        Returns:
            Whether the copies are as fresh as they have to be; if not, somebody has to read them.
        """
        if self._mode is PullMode.NEVER:
            return False
        self._is_run, had = variables is not None, self._pushes
        self._pushes = 0
        if variables is None:
            self._follows_lone_push = True
            return False
        self._follows_lone_push = had <= 1
        values, is_out = self._values, self._flight.is_out
        values.expect(variables)
        if not is_out and not self._step_tracker.has_permits():
            values.drop()
            return False
        with self._guard:
            if values.use(variables, beside_push=is_out):
                return True
        if is_out:
            self._flight.finish()
            values.drop()
        return False

    def flush(self) -> None:
        """Wait until all that was sent is applied.

        Raises:
            StratagemError: It was not. The next call does not raise that again.
        """
        self._flight.finish()

    def drop(self, fresh: Collection[RemoteVariable] = ()) -> None:
        """Forget the values that have come for the next run.

        Args:
            fresh: Those variables whose copies are all that it needs of them.
        """
        if self._mode is not PullMode.NEVER:
            self._values.drop(fresh)

    def apply(self, push: Push) -> None:
        """Have servers apply gradients.

        Afterwards the copies of what is stepped are fresh, unless the program goes on while the
        push is in flight. No other copies are written, since graphs that are still to be
        differentiated may need them as they are.

        Raises:
            StratagemError: A server could not be reached, or has refused its part.
        """
        self._pushes += 1
        values, servers = self._values, self._servers
        if self._mode is PullMode.IN_FLIGHT and not self._is_run:
            values.expect([*chain.from_iterable(push.copies.values())])
        mode = self._mode_of(push)
        if mode is PushMode.PLAIN:
            values.drop()
            with self._guard:
                self._apply_plainly(push)
            if self._brings_all(push):
                values.drop(fresh=[*chain.from_iterable(push.copies.values())])
            return
        asked = values.ask(push)
        begins = self._begins_after(push)

        def arrived(answers: Answers) -> None:
            self._take_permits(begins, answers)
            values.keep(asked, answers)

        if mode is PushMode.FUSED:
            answers = servers.call_all(self._requests(push, asked.following, begins), Order.STEP)
            arrived(answers)
            push.rows.arrived(_has_rows_on_disk(answers))
        else:
            requests = self._requests(push, asked.following, begins, self._copies)
            nbytes = sum(request.request_nbytes for request in requests.values())
            send = partial(servers.start_all, requests, Order.IN_FLIGHT)
            self._flight.begin(send, arrived, is_large=nbytes > _MOST_SENT_BYTES)
        with self._guard:
            values.copy_into(chain.from_iterable(push.copies.values()))

    def _brings_all(self, push: Push) -> bool:
        """Whether what a plain push brought into copies will do for the next run.

        So it is with what is too large for memory of its own.
        """
        is_lone = self._is_run and self._pushes == 1
        return self._mode is PullMode.ALWAYS and is_lone and push.permit.consistency._is_free

    def _mode_of(self, push: Push) -> PushMode:
        """Return how to send a push; there is no other in flight.

        Runs that push several times are not worth fusing: all answers but the last would bring
        values that nobody uses.
        """
        expected, flies = self._values.expected, self._mode is PullMode.IN_FLIGHT
        if (
            self._mode is PullMode.NEVER
            or not push.permit.consistency._is_free
            or not (self._is_run or flies)
            or not self._follows_lone_push
            or self._pushes != 1
            or not expected
            or not push.updates.keys() >= expected.keys()
            or self._servers.used[0] not in push.updates
            or not (flies or self._values.nbytes <= _MOST_PREFETCHED_BYTES)
        ):
            return PushMode.PLAIN
        return PushMode.IN_FLIGHT if flies and not push.is_awaited else PushMode.FUSED

    def _apply_plainly(self, push: Push) -> None:
        """Send a step, and have its answer bring what is stepped, into the copies themselves."""
        # A permit for the next step is of use if nobody reads before that.
        begins = self._begins_after(push) if self._mode is PullMode.ALWAYS else ()
        copies, then = {}, {}
        for server, some in push.copies.items():
            copies[server] = [*unread(some)]
            then[server] = self._reads_of(push.optimizer, server, copies[server])
        try:
            answers = self._servers.call_all(self._requests(push, then, begins), Order.STEP)
        except BaseException:
            # What has come is not to count as the user's writing.
            for variable in chain.from_iterable(copies.values()):
                variable.invalidate()
            raise
        self._take_permits(begins, answers)
        for server, some in copies.items():
            each = zip(some, then[server].readings, answers[server].versions, strict=True)
            for variable, reading, version in each:
                variable.replaced(version, reading.narrowed_to is not None)
        push.rows.arrived(_has_rows_on_disk(answers))

    def _reads_of(
        self, optimizer: str, server: int, copies: Sequence[RemoteVariable]
    ) -> ReadsAfterUpdate:
        """Return how to read what a push has stepped, by what was found out before."""
        leaves = [variable.leaf for variable in copies]
        known = self._stepped_reads.get((optimizer, server), NOTHING_FOLLOWS)
        targets = [reading.into for reading in known.readings]
        if len(leaves) != len(targets) or not all(map(is_, leaves, targets)):
            # What is stepped is newer then, so the same words ask for it each time.
            rounded_to = self._guard.rounded_to
            known = self._stepped_reads[optimizer, server] = following(
                [
                    Reading(one.name, leaf, narrowed_to=rounded_to(one, training=True))
                    for one, leaf in zip(copies, leaves, strict=True)
                ]
            )
        return known

    def _begins_after(self, push: Push) -> Sequence[StepBegin]:
        """Return how to ask for a permit for the step behind a push."""
        if not push.permit.consistency._is_free:
            return []
        begins = self._step_tracker.begins([push.optimizer])
        for begin in begins:
            # Once this is answered, and nobody looks before at asynchronous steps.
            begin.finished = push.permit.step
        return begins

    def _requests(
        self,
        push: Push,
        then: Mapping[int, ReadsAfterUpdate],
        begins: Sequence[StepBegin],
        copies: OwnCopies | None = None,
    ) -> dict[int, Request[Answer]]:
        """Return what to send to each server: gradients, and what to read behind them.

        The first server is also asked for permits. `copies` makes copies of the gradients; without
        it they are sent as they are.
        """
        first = self._servers.used[0]
        requests: dict[int, Request[Answer]] = {}
        for server, (update, _, arrived) in push.updates.items():
            follows = then.get(server, NOTHING_FOLLOWS)
            asked = begins if server == first else ()
            own = None if copies is None else copies.copied(server, update)
            rows = [each.get(server, ()) for each in (push.rows.readings, push.rows.announced)]
            request = and_read(update, follows, asked, own, *rows)
            requests[server] = request if arrived is None else request.then(arrived)
        return requests

    def _take_permits(self, begins: Sequence[StepBegin], answers: Answers) -> None:
        first = answers.get(self._servers.used[0])
        if first is not None and first.grants:
            self._step_tracker.granted(begins, first.grants)


def _has_rows_on_disk(answers: Answers) -> bool:
    return any([answer.has_rows_on_disk for answer in answers.values()])


Outcome = TypeVar("Outcome")

Sending: TypeAlias = Callable[[], Callable[[], Outcome]]
"""Sends a push; returns what waits for the answer, and repeats it if need be."""


class PushInFlight(Generic[Outcome]):
    """One push at most, ahead of a group's other requests. Thread-safe.

    The thread that begins a small push sends it, and the one that finishes it takes in the answer:
    two threads that compute and decode at once would only take turns at the interpreter. A thread
    of its own has what is large, or was left alone. The step of a push is not over until that is
    answered.
    """

    def __init__(self, steps: CheckpointSteps) -> None:
        self._steps = steps
        self._threads: ThreadPoolExecutor | None = None
        self._sent: _Sent[Outcome] | None = None
        self._arrived: Callable[[Outcome], None] = lambda _: None
        self._taking_in = threading.Lock()
        # Of two that are begun at once, nobody would wait for the first.
        self._beginning = threading.Lock()

    @property
    def is_out(self) -> bool:
        """Whether there is a push whose answer was not taken in."""
        return self._sent is not None

    def begin(
        self, send: Sending[Outcome], arrived: Callable[[Outcome], None], is_large: bool = False
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
        self, send: Sending[Outcome], arrived: Callable[[Outcome], None], is_large: bool
    ) -> None:
        self._arrived = arrived
        step = self._steps.set_apart()
        if is_large:
            self._sent = _Sent(self._steps, step, lambda: send()())
            self.wait_in_background()
            return
        try:
            # What is sent and not known of would be waited for for ever.
            with uninterrupted():
                self._sent = _Sent(self._steps, step, send())
        except BaseException:
            with self._steps.taking_apart(step):
                raise

    def wait_in_background(self) -> None:
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


class _Sent(Generic[Outcome]):
    """A push whose answer whoever comes first waits for."""

    def __init__(self, steps: CheckpointSteps, step: int, wait: Callable[[], Outcome]) -> None:
        self._steps, self._step, self._wait = steps, step, wait
        self._outcome: Future[Outcome] = Future()
        self._waiting = threading.Lock()

    @property
    def is_answered(self) -> bool:
        return self._outcome.done()

    def wait(self) -> None:
        # Whoever is interrupted must not give it up.
        with uninterrupted(), self._waiting:
            if self._outcome.done():
                return
            try:
                with self._steps.taking_apart(self._step):
                    answer = self._wait()
            except Exception as error:
                _LOG.warning("a push in flight failed, which is raised next: %s", error)
                self._outcome.set_exception(error)
            else:
                self._outcome.set_result(answer)

    def answer(self) -> Outcome:
        assert self._outcome.done(), "it was waited for"
        return self._outcome.result()


class OwnCopies:
    """Copies of gradients, which nobody changes while their push is in flight.

    Copies take the memory of those before where they are alike, so the push before must be
    finished.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[SegmentLayout, Sequence[torch.Tensor]]] = {}

    def copied(self, server: int, update: Request[list[int]]) -> Sequence[torch.Tensor]:
        """Return copies of the tensors that a server is sent."""
        layout, copies = self._last.get(server, (None, ()))
        if layout is not None and layout is update.layout:
            with torch.no_grad():
                torch._foreach_copy_([*copies], [*update.tensors])
            return copies
        copies = [tensor.detach().clone() for tensor in update.tensors]
        if update.layout is not None:
            self._last[server] = update.layout, copies
        return copies
