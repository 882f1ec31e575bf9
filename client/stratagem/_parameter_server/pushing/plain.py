"""Pushes whose answers bring what they have stepped, and no more."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from operator import is_

from stratagem._parameter_server.pushing.push import Pulls, Push, Pushing
from stratagem._parameter_server.pushing.push_in_flight import OwnCopies
from stratagem._parameter_server.pushing.step_tracker import StepTracker
from stratagem._parameter_server.variables.cached_reads import unread
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.reading import (
    NOTHING_FOLLOWS,
    Reading,
    ReadsAfterUpdate,
    following,
)
from stratagem._ps_client.requests.reads import Answer, and_read
from stratagem._ps_client.requests.request import Request
from stratagem_proto.v1.consistency_pb2 import StepBegin


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
