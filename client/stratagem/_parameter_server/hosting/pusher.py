"""Pushing gradients: plain, fused with the next step's read, or in flight."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from operator import is_
from typing import Generic, NoReturn, TypeAlias, TypeVar

import torch

from stratagem._core.waiting import uninterrupted
from stratagem._parameter_server.hosting.push import (
    Asked,
    PrefetchedValues,
    PullMode,
    Pulls,
    Push,
    Pushing,
    RunSoFar,
    Way,
    way_of,
)
from stratagem._parameter_server.hosting.steps import StepTracker
from stratagem._parameter_server.variables.variable import RemoteVariable, unread
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.reads import (
    NOTHING_FOLLOWS,
    Answer,
    Reading,
    ReadsAfterUpdate,
    and_read,
    following,
)
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.step_count import StepCount
from stratagem_proto.v1.consistency_pb2 import StepBegin
from stratagem_proto.wire.placed import SegmentLayout

_LOG = logging.getLogger("stratagem")

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

    def __init__(self, steps: StepCount) -> None:
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


class _Sent(Generic[Outcome]):
    """A push whose answer whoever comes first waits for."""

    def __init__(self, steps: StepCount, step: int, wait: Callable[[], Outcome]) -> None:
        self._steps, self._step, self._wait = steps, step, wait
        # How to get what came of it; None while that is not known.
        self._answer: Callable[[], Outcome] | None = None
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

    def answer(self) -> Outcome:
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


class Exchange:
    """What all ways to push have in common: requests, and permits for next steps."""

    def __init__(self, servers: ServerGroup, step_tracker: StepTracker) -> None:
        self.servers, self.step_tracker = servers, step_tracker

    def begins_after(self, push: Push) -> Sequence[StepBegin]:
        """Return how to ask for a permit for the step behind a push."""
        if not push.permit.consistency._is_free:
            return []
        begins = self.step_tracker.begins([push.optimizer])
        for begin in begins:
            # Once this is answered, and nobody looks before at asynchronous steps.
            begin.finished = push.permit.step
        return begins

    def requests(
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
        first = self.servers.used[0]
        requests: dict[int, Request[Answer]] = {}
        for server, (update, _, arrived) in push.updates.items():
            follows = then.get(server, NOTHING_FOLLOWS)
            asked = begins if server == first else ()
            own = None if copies is None else copies.of(server, update)
            rows = push.rows.readings.get(server, ())
            request = and_read(update, follows, asked, own, rows)
            requests[server] = request if arrived is None else request.then(arrived)
        return requests

    def take_permits(self, begins: Sequence[StepBegin], answers: Mapping[int, Answer]) -> None:
        """Note the permits that came with answers, if any did."""
        first = answers.get(self.servers.used[0])
        if first is not None and first.grants:
            self.step_tracker.granted(begins, first.grants)


class PlainPushing(Pushing):
    """Sends a step, and waits until its answer has brought what is stepped.

    That goes into the copies before the push returns, as an optimizer of torch leaves its
    parameters. With `asks_ahead` it asks for a permit for the next step as well, which is of use if
    nobody reads before that.
    """

    def __init__(self, exchange: Exchange, pulls: Pulls, asks_ahead: bool = False) -> None:
        self._exchange, self._pulls = exchange, pulls
        self._asks_ahead = asks_ahead
        # By optimizer and server.
        self._known: dict[tuple[str, int], ReadsAfterUpdate] = {}

    def refresh(self, variables: Sequence[RemoteVariable] | None) -> bool:
        return False

    def flush(self) -> None:
        pass

    def drop(self, fresh: Collection[RemoteVariable] = ()) -> None:
        pass

    def apply(self, push: Push) -> None:
        with self._pulls:
            self._apply(push)

    def _apply(self, push: Push) -> None:
        exchange = self._exchange
        copies = {server: [*unread(some)] for server, some in push.copies.items()}
        begins = exchange.begins_after(push) if self._asks_ahead else ()
        then = {
            server: self._followed(push.optimizer, server, some) for server, some in copies.items()
        }
        try:
            answers = exchange.servers.push(exchange.requests(push, then, begins))
        except BaseException:
            # What has come is not to count as the user's writing.
            for variable in chain.from_iterable(copies.values()):
                variable.distrust()
            raise
        exchange.take_permits(begins, answers)
        for server, some in copies.items():
            _accept(some, then[server], answers[server])
        push.rows.arrived()

    def _followed(
        self, optimizer: str, server: int, copies: Sequence[RemoteVariable]
    ) -> ReadsAfterUpdate:
        """Return how to read what a push has stepped, by what was found out before."""
        leaves = [variable.leaf for variable in copies]
        known = self._known.get((optimizer, server), NOTHING_FOLLOWS)
        targets = [reading.into for reading in known.readings]
        if len(leaves) != len(targets) or not all(map(is_, leaves, targets)):
            # What is stepped is newer then, so the same words ask for it each time.
            rounded_to = self._pulls.rounded_to
            known = self._known[optimizer, server] = following(
                [
                    Reading(one.name, leaf, narrowed_to=rounded_to(one, training=True))
                    for one, leaf in zip(copies, leaves, strict=True)
                ]
            )
        return known


def _accept(variables: Sequence[RemoteVariable], then: ReadsAfterUpdate, answer: Answer) -> None:
    each = zip(variables, then.readings, answer.versions, strict=True)
    for variable, reading, version in each:
        variable.replaced(version, reading.narrowed_to is not None)


# What takes longer to send than another thread takes to begin, is sent by that one.
_MOST_SENT_BYTES = 1 << 20

Answers = Mapping[int, Answer]


class FusedPushing(Pushing):
    """Spares the next run its request for values and permits, wherever it can.

    What a push has stepped goes into the copies at once. The rest waits for the run. The mode is
    ALWAYS or IN_FLIGHT.
    """

    def __init__(self, exchange: Exchange, pulls: Pulls, mode: PullMode) -> None:
        self._exchange, self._pulls, self._mode = exchange, pulls, mode
        is_waited_for = mode is not PullMode.IN_FLIGHT
        self._plain = PlainPushing(exchange, pulls, asks_ahead=is_waited_for)
        self._values = PrefetchedValues(exchange.servers, pulls)
        self._run = RunSoFar(is_run=True, follows_lone_push=True)
        self._copies = OwnCopies()
        self._flight: PushInFlight[Answers] = PushInFlight(exchange.servers.steps)
        if not is_waited_for:
            exchange.servers.send_first(self._flight)

    def refresh(self, variables: Sequence[RemoteVariable] | None) -> bool:
        if variables is None:
            self._run = RunSoFar(is_run=False, follows_lone_push=True)
            return False
        self._run = RunSoFar(True, follows_lone_push=self._run.pushes <= 1)
        self._values.expect(variables)
        if self._flight.is_out:
            return self._refresh_beside_push(variables)
        if not self._exchange.step_tracker.has_permits():
            self._values.drop()
        with self._pulls:
            return self._values.use(variables)

    def _refresh_beside_push(self, variables: Sequence[RemoteVariable]) -> bool:
        with self._pulls:
            if self._values.use(variables, beside_push=True):
                return True
        self._flight.finish()
        self._values.drop()
        return False

    def flush(self) -> None:
        self._flight.finish()

    def drop(self, fresh: Collection[RemoteVariable] = ()) -> None:
        self._values.drop(fresh)

    def apply(self, push: Push) -> None:
        self._run.pushes += 1
        values, first = self._values, self._exchange.servers.used[0]
        if self._mode is PullMode.IN_FLIGHT and not self._run.is_run:
            values.expect([*chain.from_iterable(push.copies.values())])
        way = way_of(push, self._mode, self._run, values.expected, first)
        if way is Way.PLAIN:
            values.drop()
            self._plain.apply(push)
            return
        self._send(push, way)
        with self._pulls:
            values.take(chain.from_iterable(push.copies.values()))

    def _send(self, push: Push, way: Way) -> None:
        exchange = self._exchange
        asked = self._values.ask(push)
        begins = exchange.begins_after(push)
        arrived = partial(self._arrived, asked, begins)
        if way is Way.FUSED:
            requests = exchange.requests(push, asked.following, begins)
            arrived(exchange.servers.push(requests))
            push.rows.arrived()
            return
        requests = exchange.requests(push, asked.following, begins, self._copies)
        nbytes = sum(request.request_nbytes for request in requests.values())
        send = partial(exchange.servers.send, requests)
        self._flight.begin(send, arrived, is_large=nbytes > _MOST_SENT_BYTES)

    def _arrived(self, asked: Asked, begins: Sequence[StepBegin], answers: Answers) -> None:
        self._exchange.take_permits(begins, answers)
        versions = {server: answer.versions for server, answer in answers.items()}
        self._values.came(asked, versions)


def pushing_of(mode: PullMode, exchange: Exchange, pulls: Pulls) -> Pushing:
    """Return how a worker pushes that has sent nothing yet."""
    if mode is PullMode.NEVER:
        return PlainPushing(exchange, pulls)
    return FusedPushing(exchange, pulls, mode)
