"""Sending the gradients of steps that servers apply when they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from stratagem._parameter_server.pushing.loads import Load
from stratagem._parameter_server.pushing.next_values import Asked, NextValues, PulledAs
from stratagem._parameter_server.pushing.own_copies import OwnCopies
from stratagem._parameter_server.pushing.pace import Pace
from stratagem._parameter_server.pushing.routes import DenseLoad
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem._servers.group import ServerGroup
from stratagem._servers.requests.reading import NOTHING_FOLLOWS
from stratagem._servers.requests.request import Request
from stratagem._servers.requests.updates_and_reads import Answer, and_read
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
        loads: What each server gets.
    """

    optimizer: str
    grant: StepGrant
    program: bytes
    loads: Mapping[int, Load] | Mapping[int, DenseLoad]


class Fusing(Enum):
    """Whether answers to pushes bring what the next step starts with."""

    NEVER = auto()
    ALWAYS = auto()
    IN_FLIGHT = auto()
    """The next but one, since the next does not wait for the answer."""


class Pushes:
    """Has the answer to a push bring what a later step starts with.

    That spares the step a request. Runs that push several times are not worth it: only
    what came last would be of use.

    Args:
        servers: The servers.
        pace: How far this worker is in its steps.
        pulled_as: What values are rounded to.
        fusing: Whether to do it.
    """

    def __init__(
        self, servers: ServerGroup, pace: Pace, pulled_as: PulledAs, fusing: Fusing
    ) -> None:
        self._servers, self._pace, self._fusing = servers, pace, fusing
        self._values = NextValues(servers, pulled_as)
        self._copies = OwnCopies()
        self._count = 0
        self._is_lone = True

    def land(self, variables: Sequence[RemoteVariable]) -> bool:
        """Begin a run; return whether copies are as fresh as they have to be.

        Args:
            variables: Whose copies.
        """
        self._is_lone, self._count = self._count <= 1, 0
        if self._fusing is not Fusing.NEVER:
            self._values.expect(variables)
        if self._servers.flight.is_out:
            return self._land_beside(variables)
        if not self._pace.is_async():
            self._values.drop()
        return self._values.land(variables)

    def _land_beside(self, variables: Sequence[RemoteVariable]) -> bool:
        if self._values.land(variables, beside=True):
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
        if self._is_fused(push):
            self._exchange(push, self._fusing is Fusing.IN_FLIGHT and not awaited)
        else:
            self._values.drop()
            self._servers.push(
                {
                    server: load.sent_by(load.update(push.program))
                    for server, load in push.loads.items()
                }
            )

    def _is_fused(self, push: Push) -> bool:
        wanted = self._values.wanted
        return (
            push.grant.consistency.mode == CONSISTENCY_MODE_ASYNC
            and self._is_lone
            and self._count == 1
            and bool(wanted)
            and push.loads.keys() >= wanted.keys()
            and self._servers.used[0] in push.loads
            and (self._fusing is Fusing.IN_FLIGHT or self._values.are_few)
        )

    def _exchange(self, push: Push, in_flight: bool) -> None:
        loads = push.loads.items()
        asked = self._values.ask({server: load.variables for server, load in loads})
        begins = self._pace.begins([push.optimizer])
        for begin in begins:
            # Once this is answered, and nobody looks before at asynchronous steps.
            begin.finished = push.grant.step
        first = self._servers.used[0]
        requests: dict[int, Request[Answer]] = {}
        for server, load in loads:
            update = load.update(push.program)
            then = asked.following.get(server, NOTHING_FOLLOWS)
            own = self._copies.of(server, update) if in_flight else None
            request = and_read(update, then, begins if server == first else (), own)
            requests[server] = load.sent_by(request)
        arrived = partial(self._arrived, asked, begins)
        if in_flight:
            nbytes = sum(request.request_nbytes for request in requests.values())
            send = partial(self._servers.send, requests)
            self._servers.flight.begin(send, arrived, nbytes > _MOST_SENT_BYTES)
        else:
            arrived(self._servers.push(requests))

    def _arrived(
        self,
        asked: Asked,
        begins: Sequence[StepBegin],
        answers: Mapping[int, Answer],
    ) -> None:
        if grants := answers[self._servers.used[0]].grants:
            self._pace.granted(begins, grants)
        versions = {server: answer.versions for server, answer in answers.items()}
        self._values.came(asked, versions)
