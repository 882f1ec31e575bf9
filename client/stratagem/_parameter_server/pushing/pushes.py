"""Sending the gradients of steps that servers apply when they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import chain
from operator import is_

from stratagem._parameter_server.pushing.arrivals import Arrivals
from stratagem._parameter_server.pushing.gradient_router import DenseServerBatch
from stratagem._parameter_server.pushing.own_copies import OwnCopies
from stratagem._parameter_server.pushing.prefetched_values import (
    Asked,
    PrefetchedValues,
    PulledAs,
)
from stratagem._parameter_server.pushing.server_batches import ServerBatch
from stratagem._parameter_server.pushing.step_tracker import StepTracker
from stratagem._parameter_server.variables.cached_reads import unread
from stratagem._parameter_server.variables.variable import Copies, RemoteVariable
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.reading import (
    NOTHING_FOLLOWS,
    Following,
    Reading,
    following,
)
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.requests.updates_and_reads import Answer, and_read
from stratagem_proto.v1.consistency_pb2 import (
    CONSISTENCY_MODE_ASYNC,
    StepBegin,
    StepGrant,
)

# What takes longer to send than another thread takes to begin, is sent by that one.
_MOST_SENT_BYTES = 1 << 20


@dataclass(frozen=True)
class Push:
    """The gradients of an asynchronous step.

    Attributes:
        optimizer: Name of the optimizer.
        grant: Leave for the step.
        program: The part of an `UpdateHeader` that has the optimizer's program.
        batches: What each server gets.
        copies: What is stepped and has a copy here, by server.
    """

    optimizer: str
    grant: StepGrant
    program: bytes
    batches: Mapping[int, ServerBatch] | Mapping[int, DenseServerBatch]
    copies: Copies


class PullMode(Enum):
    """Whether answers to pushes bring all that the next run starts with.

    What a push has stepped, its answer brings in any case.
    """

    NEVER = auto()
    ALWAYS = auto()
    IN_FLIGHT = auto()
    """The next but one, since the next does not wait for the answer."""


class Pushes:
    """Has the answer to a push bring the values of what it has stepped.

    Those go into the copies before the push returns, as an optimizer of torch leaves
    its parameters. Nothing else does: graphs that are still to be differentiated may
    need the other copies as they are.

    The answer may bring the rest of what the next run starts with as well, which waits
    until then and spares that a request. Runs that push several times are not worth it.

    Args:
        servers: The servers.
        step_tracker: How far this worker is in its steps.
        pulled_as: What values are rounded to.
        fusing: Whether to do it.
        arrivals: To be entered while values come into copies.
    """

    def __init__(
        self,
        servers: ServerGroup,
        step_tracker: StepTracker,
        pulled_as: PulledAs,
        fusing: PullMode,
        arrivals: Arrivals,
    ) -> None:
        self._servers, self._step_tracker, self._fusing = servers, step_tracker, fusing
        self._pulled_as, self._arrivals = pulled_as, arrivals
        self._values = PrefetchedValues(servers, pulled_as)
        self._copies = OwnCopies()
        # By optimizer and server.
        self._known: dict[tuple[str, int], Following] = {}
        self._count = 0
        self._is_lone = self._is_in_run = True

    def use_prefetched(self, variables: Sequence[RemoteVariable]) -> bool:
        """Begin a run; return whether copies are as fresh as they have to be.

        Args:
            variables: Whose copies.
        """
        self._is_lone, self._count, self._is_in_run = self._count <= 1, 0, True
        if self._fusing is not PullMode.NEVER:
            self._values.expect(variables)
        if self._servers.flight.is_out:
            return self._land_beside(variables)
        if not self._step_tracker.has_leave():
            self._values.drop()
        with self._arrivals:
            return self._values.use_prefetched(variables)

    def begin_outside_of_runs(self) -> None:
        """Begin a step whose push is to bring nothing but what it steps."""
        self._is_lone, self._count, self._is_in_run = True, 0, False

    def _land_beside(self, variables: Sequence[RemoteVariable]) -> bool:
        with self._arrivals:
            if self._values.use_prefetched(variables, beside=True):
                return True
        self._servers.flight.settle()
        self._values.drop()
        return False

    def send(self, push: Push, awaited: bool = False) -> None:
        """Send gradients.

        Args:
            push: The gradients.
            awaited: Whether to wait until they are applied in any case.
        """
        self._count += 1
        if self._fusing is PullMode.IN_FLIGHT and not self._is_in_run:
            self._values.expect([*chain.from_iterable(push.copies.values())])
        if self._is_fused(push):
            self._exchange(push, self._fusing is PullMode.IN_FLIGHT and not awaited)
            with self._arrivals:
                self._values.take(chain.from_iterable(push.copies.values()))
        else:
            self._values.drop()
            with self._arrivals:
                self._update(push)

    def _update(self, push: Push) -> None:
        """Send gradients, and read what they step into the copies."""
        copies = {server: [*unread(some)] for server, some in push.copies.items()}
        begins = self._begins_after(push) if self._fusing is PullMode.ALWAYS else []
        followed = {
            server: self._followed(push.optimizer, server, some)
            for server, some in copies.items()
        }
        try:
            answers = self._servers.push(self._requests(push, followed, begins))
        except BaseException:
            # What has come is not to count as the user's writing.
            for variable in chain.from_iterable(copies.values()):
                variable.distrust()
            raise
        self._granted(begins, answers)
        for server, some in copies.items():
            _settle(some, followed[server], answers[server])

    def _is_fused(self, push: Push) -> bool:
        wanted = self._values.wanted
        return (
            push.grant.consistency.mode == CONSISTENCY_MODE_ASYNC
            and (self._is_in_run or self._fusing is PullMode.IN_FLIGHT)
            and self._is_lone
            and self._count == 1
            and bool(wanted)
            and push.batches.keys() >= wanted.keys()
            and self._servers.used[0] in push.batches
            and (self._fusing is PullMode.IN_FLIGHT or self._values.are_few)
        )

    def _exchange(self, push: Push, in_flight: bool) -> None:
        batches = push.batches.items()
        asked = self._values.ask({server: batch.variables for server, batch in batches})
        begins = self._begins_after(push)
        requests = self._requests(push, asked.following, begins, in_flight)
        arrived = partial(self._arrived, asked, begins)
        if in_flight:
            nbytes = sum(request.request_nbytes for request in requests.values())
            send = partial(self._servers.send, requests)
            self._servers.flight.begin(send, arrived, nbytes > _MOST_SENT_BYTES)
        else:
            arrived(self._servers.push(requests))

    def _followed(
        self, optimizer: str, server: int, copies: Sequence[RemoteVariable]
    ) -> Following:
        """Return how to read what a push has stepped, by what was found out before."""
        leaves = [variable.leaf for variable in copies]
        known = self._known.get((optimizer, server), NOTHING_FOLLOWS)
        targets = [reading.into for reading in known.readings]
        if len(leaves) != len(targets) or not all(map(is_, leaves, targets)):
            # What is stepped is newer then, so the same words ask for it each time.
            known = self._known[optimizer, server] = following(
                [
                    Reading(one.name, leaf, narrowed_to=self._pulled_as(one, True))
                    for one, leaf in zip(copies, leaves, strict=True)
                ]
            )
        return known

    def _begins_after(self, push: Push) -> Sequence[StepBegin]:
        """Return how to ask for leave for the step behind a push."""
        if push.grant.consistency.mode != CONSISTENCY_MODE_ASYNC:
            return []
        begins = self._step_tracker.begins([push.optimizer])
        for begin in begins:
            # Once this is answered, and nobody looks before at asynchronous steps.
            begin.finished = push.grant.step
        return begins

    def _requests(
        self,
        push: Push,
        followed: Mapping[int, Following],
        begins: Sequence[StepBegin],
        in_flight: bool = False,
    ) -> dict[int, Request[Answer]]:
        first = self._servers.used[0]
        requests: dict[int, Request[Answer]] = {}
        for server, batch in push.batches.items():
            update = batch.update(push.program)
            then = followed.get(server, NOTHING_FOLLOWS)
            own = self._copies.of(server, update) if in_flight else None
            request = and_read(update, then, begins if server == first else (), own)
            requests[server] = batch.sent_by(request)
        return requests

    def cover(self, variables: Iterable[RemoteVariable]) -> None:
        """Take note that copies are all that the next run needs of them."""
        self._values.cover(variables)

    def _arrived(
        self,
        asked: Asked,
        begins: Sequence[StepBegin],
        answers: Mapping[int, Answer],
    ) -> None:
        self._granted(begins, answers)
        versions = {server: answer.versions for server, answer in answers.items()}
        self._values.came(asked, versions)

    def _granted(
        self, begins: Sequence[StepBegin], answers: Mapping[int, Answer]
    ) -> None:
        first = answers.get(self._servers.used[0])
        if first is not None and first.grants:
            self._step_tracker.granted(begins, first.grants)


def _settle(
    variables: Sequence[RemoteVariable], followed: Following, answer: Answer
) -> None:
    each = zip(variables, followed.readings, answer.versions, strict=True)
    for variable, reading, version in each:
        variable.replaced(version, reading.narrowed_to is not None)
