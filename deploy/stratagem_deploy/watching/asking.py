"""Asking servers what they are doing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import grpc

from stratagem_deploy.watching.places import ServerPlace, replica_name
from stratagem_proto.errors import (
    PermissionDeniedError,
    UnauthenticatedError,
    UnimplementedError,
)
from stratagem_proto.v1.replication_pb2 import STANDING_PRIMARY, ReplicationStatus
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_proto.wire.asking import Answer, begin_status
from stratagem_proto.wire.channel import open_channel
from stratagem_proto.wire.status import from_rpc_error

_OTHER_PORT = " This is probably its port for health checks; give the main one, that of --bind"

_REFUSALS = (PermissionDeniedError, UnauthenticatedError)


@dataclass(frozen=True)
class ServerAnswer:
    """What came of asking one server.

    Attributes:
        place: Where it was looked for.
        status: What it said; None if it did not answer.
        problem: Why it did not, or "".
        time: When, in seconds of a monotonic clock.
        refused: Whether it does not take this program for one of its cluster.
    """

    place: ServerPlace
    status: GetStatusResponse | None
    problem: str = ""
    time: float = field(default_factory=time.monotonic, compare=False)
    refused: bool = False

    @property
    def label(self) -> str:
        """What answered, for instance "ps:0"; where nobody did, what is meant to be there.

        Of a task with replicas the primary has the name of the task.
        """
        if self.status is None:
            return self.place.name
        if self.replication is None or self.serves:
            return self.task
        if self.replication.is_movable:
            return f"{self.task}, moved away"
        return replica_name(self.task, self.replication.replica.index)

    @property
    def task(self) -> str:
        """The task, whichever of its replicas it is; "" if that is not known."""
        if self.status is None:
            return self.place.label
        return f"{self.status.task.job}:{self.status.task.index}"

    @property
    def replication(self) -> ReplicationStatus | None:
        """What the replica of a task said of itself; None if it is none, or did not answer."""
        if self.status is None or not self.status.parameter_server.HasField("replication"):
            return None
        return self.status.parameter_server.replication

    @property
    def serves(self) -> bool:
        """Whether it is the primary of its task."""
        return self.replication is not None and self.replication.standing == STANDING_PRIMARY

    @property
    def moved_to(self) -> str:
        """Where the task is that has moved away from there; "" if it has not."""
        if self.replication is None or self.serves or not self.replication.is_movable:
            return ""
        return self.replication.view.primary.address

    @property
    def is_missed(self) -> bool:
        """Whether somebody should have answered and did not."""
        return self.status is None and not self.place.optional


def ask(
    places: Sequence[ServerPlace], token: str, timeout: float, with_variables: bool = False
) -> list[ServerAnswer]:
    """Ask all servers at once, and those at once to which tasks have moved from them.

    Args:
        places: Where they are.
        token: The cluster's secret, or "".
        timeout: Longest wait for the slowest, in seconds.
        with_variables: Whether they are to list their variables.
    """
    answers = _asked(places, token, timeout, with_variables)
    moved = {answer.task: answer.moved_to for answer in answers if answer.moved_to}
    if not moved:
        return answers
    there = [ServerPlace(address, task) for task, address in moved.items()]
    found = dict(zip(moved, _asked(there, token, timeout, with_variables), strict=True))
    return [found[answer.task] if answer.moved_to else answer for answer in answers]


def _asked(
    places: Sequence[ServerPlace], token: str, timeout: float, with_variables: bool
) -> list[ServerAnswer]:
    with ExitStack() as channels:
        calls = []
        for place in places:
            channel = channels.enter_context(open_channel(place.address))
            calls.append(begin_status(channel, token, timeout, with_variables))
        return [_answer(*each) for each in zip(places, calls, strict=True)]


def _answer(place: ServerPlace, call: Answer[GetStatusResponse]) -> ServerAnswer:
    try:
        return ServerAnswer(place, call.result())
    except grpc.RpcError as error:
        problem = from_rpc_error(error, place.name, "GetStatus")
        where = _OTHER_PORT if isinstance(problem, UnimplementedError) else ""
        refused = isinstance(problem, _REFUSALS)
        return ServerAnswer(place, None, problem.message + where, refused=refused)


def of_clients(answers: Iterable[ServerAnswer]) -> list[ServerAnswer]:
    """Return the answers of servers that clients talk to: all but backups, which know the same."""
    return [answer for answer in answers if answer.replication is None or answer.serves]


def statuses(answers: Iterable[ServerAnswer]) -> Iterator[tuple[str, GetStatusResponse]]:
    """Yield the label of each server that answered, and what it said."""
    return ((answer.label, answer.status) for answer in answers if answer.status)
