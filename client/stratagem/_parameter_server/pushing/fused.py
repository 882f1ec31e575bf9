"""Pushes whose answers bring what the next run starts with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain

from stratagem._parameter_server.pushing.plain import Exchange, PlainPushing
from stratagem._parameter_server.pushing.prefetched_values import Asked, PrefetchedValues
from stratagem._parameter_server.pushing.push import (
    PullMode,
    Pulls,
    Push,
    Pushing,
    RunSoFar,
    Way,
    way_of,
)
from stratagem._parameter_server.pushing.push_in_flight import OwnCopies, PushInFlight
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem._ps_client.requests.reads import Answer
from stratagem_proto.v1.consistency_pb2 import StepBegin

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
