"""What all servers say of themselves, and which tasks are to move between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from stratagem._ps_client.session import Identity, handshake
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
)
from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_proto.v1.replication_pb2 import View
from stratagem_proto.v1.servers_pb2 import DescribeServerResponse
from stratagem_proto.wire.status import from_rpc_error
from stratagem_rpc.asking import Answer, Question
from stratagem_rpc.channel import ANY_PARAMETER_SERVER, open_channel


class Effort(NamedTuple):
    """What may be spent on the move of a task.

    Attributes:
        timeout: The longest time, in seconds.
        bytes_per_second: The most bytes of values to be sent in a second; 0 for as many as
            possible.
    """

    timeout: float
    bytes_per_second: int


def effort_of(timeout: float, bytes_per_second: float | None) -> Effort:
    """Return what a program has said.

    Raises:
        InvalidArgumentError: Nothing could move at that rate.
    """
    if bytes_per_second is None:
        return Effort(timeout, 0)
    if not 1 <= bytes_per_second < math.inf:
        raise InvalidArgumentError(
            f"no task moves at {bytes_per_second} bytes per second; give a number of at least 1, "
            "such as 20e6, or None for no limit"
        )
    return Effort(timeout, int(bytes_per_second))


_SERVICE = pb.DESCRIPTOR.services_by_name["ServersService"].full_name

_ASK_SECONDS = 5.0

# A server that takes a task answers by itself when the time is over.
_MARGIN_SECONDS = 30.0

_Response = TypeVar("_Response", bound=Message)


class ServerCalls:
    """Calls servers by their addresses.

    Args:
        identity: Who calls.
    """

    def __init__(self, identity: Identity) -> None:
        self._token, self._asking = identity.token, handshake(identity, identifier=b"")

    def describe(
        self, addresses: Iterable[str]
    ) -> dict[str, pb.DescribeServerResponse | StratagemError]:
        """Return what each server says of itself, or why it does not."""
        request = pb.DescribeServerRequest(asking=self._asking)
        return self._ask(addresses, "DescribeServer", request, pb.DescribeServerResponse)

    def locate(self, addresses: Iterable[str]) -> dict[str, dict[int, View] | StratagemError]:
        """Return where each server says that tasks are, or why it does not."""
        request = pb.LocateTasksRequest(asking=self._asking)
        found = self._ask(addresses, "LocateTasks", request, pb.LocateTasksResponse)
        return {
            address: answer
            if isinstance(answer, StratagemError)
            else {each.task: each.view for each in answer.tasks}
            for address, answer in found.items()
        }

    def take(self, address: str, task: int, effort: Effort) -> View:
        """Have a server take a task; raise what it answers."""
        request = pb.TakeTaskRequest(
            asking=self._asking,
            task=task,
            seconds=effort.timeout,
            bytes_per_second=effort.bytes_per_second,
        )
        deadline = effort.timeout + _MARGIN_SECONDS
        return self._call(address, "TakeTask", request, pb.TakeTaskResponse, deadline).view

    def set_draining(self, address: str, draining: bool) -> None:
        """Say whether a server may be given tasks; raise what it answers."""
        request = pb.SetDrainingRequest(asking=self._asking, draining=draining)
        self._call(address, "SetDraining", request, pb.SetDrainingResponse)

    def _call(
        self,
        address: str,
        method: str,
        request: Message,
        response_type: type[_Response],
        seconds: float = _ASK_SECONDS,
    ) -> _Response:
        found = self._ask([address], method, request, response_type, seconds)[address]
        if isinstance(found, StratagemError):
            raise found
        return found

    def _ask(
        self,
        addresses: Iterable[str],
        method: str,
        request: Message,
        response_type: type[_Response],
        seconds: float = _ASK_SECONDS,
    ) -> dict[str, _Response | StratagemError]:
        question = Question(f"/{_SERVICE}/{method}", request, response_type)
        with ExitStack() as channels:
            answers = {}
            for address in addresses:
                opened = open_channel(address, expected=ANY_PARAMETER_SERVER)
                channel = channels.enter_context(opened)
                answers[address] = Answer(channel, question, self._token, seconds)
            return {
                address: _outcome(answer, f"the server at {address}", method)
                for address, answer in answers.items()
            }


def _outcome(answer: Answer[_Response], peer: str, method: str) -> _Response | StratagemError:
    try:
        return answer.result()
    except grpc.RpcError as error:
        return from_rpc_error(error, peer, method)


# A move has to lower the heavier of two loads by so much of the mean one to be worth it.
_WORTH = 0.05


@dataclass(frozen=True)
class TaskLoad:
    """What a task of the job ps needs of its server.

    Attributes:
        task: Its index.
        nbytes: Memory of its variables with the state of their optimizers, in bytes.
        calls_per_second: Calls that read or change its variables.
    """

    __module__ = "stratagem"

    task: int
    nbytes: int
    calls_per_second: float


@dataclass(frozen=True)
class TaskMove:
    """A task that goes from one server to another.

    Attributes:
        task: Its index.
        source: The number of the server that it leaves.
        target: The number of the server that it goes to.
    """

    __module__ = "stratagem"

    task: int
    source: int
    target: int


Weights: TypeAlias = Mapping[int, float]
"""How heavy tasks are, by index."""

Placement: TypeAlias = Mapping[int, int]
"""The number of the server of each task."""


def weights_of(loads: Iterable[TaskLoad]) -> Weights:
    """Return how heavy tasks are; all together weigh 2, or less if they do nothing."""
    known = [*loads]
    nbytes = sum(load.nbytes for load in known) or 1
    calls = sum(load.calls_per_second for load in known) or 1.0
    return {load.task: load.nbytes / nbytes + load.calls_per_second / calls for load in known}


def drained(
    placement: Placement, weights: Weights, server: int, targets: Sequence[int]
) -> list[TaskMove]:
    """Return the moves that leave a server without tasks, the heaviest task first.

    Args:
        placement: Where all tasks are.
        weights: How heavy they are; those that nobody has weighed are light.
        server: The server.
        targets: The servers that take its tasks; at least one.
    """
    loads = _loads(placement, weights, targets)
    moves = []
    leaving = [task for task, host in placement.items() if host == server]
    for task in sorted(leaving, key=lambda task: (-weights.get(task, 0.0), task)):
        target = min(targets, key=lambda each: (loads[each], each))
        loads[target] += weights.get(task, 0.0)
        moves.append(TaskMove(task, server, target))
    return moves


def balanced(placement: Placement, weights: Weights, servers: Sequence[int]) -> list[TaskMove]:
    """Return the moves that make the loads of servers as even as whole tasks allow.

    Args:
        placement: Where all tasks are; on these servers only.
        weights: How heavy they are.
        servers: The servers; at least one.
    """
    present = dict(placement)
    worth = _WORTH * sum(weights.values()) / len(servers)
    while (step := _step(present, weights, servers, worth)) is not None:
        task, target = step
        present[task] = target
    return [
        TaskMove(task, source, present[task])
        for task, source in sorted(placement.items())
        if present[task] != source
    ]


def _step(
    present: Placement, weights: Weights, servers: Sequence[int], worth: float
) -> tuple[int, int] | None:
    """Return the move from the heaviest server that has one which is worth it; None if none has."""
    loads = _loads(present, weights, servers)
    lightest = min(servers, key=lambda each: (loads[each], each))
    for source in sorted(servers, key=lambda each: (-loads[each], each)):
        # A server that has but one task with a load cannot give half of it away.
        after = {
            task: max(loads[source] - weights[task], loads[lightest] + weights[task])
            for task, host in sorted(present.items())
            if host == source and weights[task] > 0
        }
        best = min(after, key=lambda task: (after[task], task), default=None)
        # Of tiny weights, what is worth a move is rounded to nothing.
        if best is not None and loads[source] > after[best] <= loads[source] - worth:
            return best, lightest
    return None


def _loads(placement: Placement, weights: Weights, servers: Iterable[int]) -> dict[int, float]:
    loads = dict.fromkeys(servers, 0.0)
    for task, server in placement.items():
        if server in loads:
            loads[server] += weights.get(task, 0.0)
    return loads


@dataclass(frozen=True)
class ServerTasks:
    """A server, and the tasks of the job ps that it serves.

    Attributes:
        number: Its number, which is the index of the task that it began with.
        address: The "host:port" at which it began.
        is_draining: Whether it is given no tasks, because it is to end.
        tasks: Its tasks, by index.
        unserved: The indices of tasks that it has, by the word of other servers, and does not
            serve: it does not answer, or was started again without them.
    """

    __module__ = "stratagem"

    number: int
    address: str
    is_draining: bool
    tasks: tuple[TaskLoad, ...]
    unserved: tuple[int, ...] = ()


@dataclass(frozen=True)
class Survey:
    """What servers have said.

    Attributes:
        servers: What each says of itself, by its number.
        addresses: Where each began.
        views: Where tasks are, by the word of the arbiter.
    """

    servers: Mapping[int, DescribeServerResponse]
    addresses: Mapping[int, str]
    views: Mapping[int, View]

    @property
    def placement(self) -> Placement:
        """The number of the server of each task."""
        return {task: view.primary.index for task, view in self.views.items()}

    @property
    def willing(self) -> list[int]:
        """The servers that may be given tasks."""
        return sorted(n for n, server in self.servers.items() if not server.is_draining)

    def number_of(self, server: int | str) -> int:
        """Return the number of a server that is named by its number or by its address.

        Raises:
            NotFoundError: There is no such server.
        """
        if server in self.servers:
            return int(server)
        if isinstance(server, str):
            found = [number for number, at in self.addresses.items() if at == server]
            if found or (server.isdigit() and int(server) in self.servers):
                return found[0] if found else int(server)
        known = ", ".join(f"{n} at {at}" for n, at in sorted(self.addresses.items()))
        raise NotFoundError(f"there is no server {server}; there are {known}")

    def require_quiet(self) -> None:
        """Check that no task is about to move.

        Raises:
            FailedPreconditionError: One is.
        """
        for number, server in sorted(self.servers.items()):
            if server.HasField("taking"):
                raise FailedPreconditionError(
                    f"server {number} is about to take /job:ps/task:{server.taking}; wait until it "
                    "serves that one, as `stratagem servers list` tells"
                )

    def require_all(self) -> None:
        """Check that all servers have answered that serve tasks.

        Raises:
            UnavailableError: One has not.
        """
        for task, view in sorted(self.views.items()):
            if not view.HasField("primary") or view.primary.index not in self.servers:
                raise UnavailableError(
                    f"the server of /job:ps/task:{task}, number {view.primary.index} at "
                    f"{view.primary.address or 'no known address'}, does not answer; start it "
                    "again with its --task, then move tasks"
                )


def surveyed(calls: ServerCalls, known: Iterable[str]) -> Survey:
    """Ask all servers that are known, and those that they know.

    Args:
        calls: Calls them.
        known: Addresses where some of them are, or were.

    Raises:
        FailedPreconditionError: They cannot move tasks.
        StratagemError: None answers.
    """
    given = sorted({*known})
    views = _views(calls.locate(given))
    told = {view.primary.address for view in views.values() if view.HasField("primary")}
    servers: dict[int, DescribeServerResponse] = {}
    addresses: dict[int, str] = {}
    for address, answer in calls.describe([*given, *sorted(told - {*given})]).items():
        if isinstance(answer, DescribeServerResponse):
            servers.setdefault(answer.server, answer)
            addresses.setdefault(answer.server, answer.address or address)
    return Survey(servers, addresses, views)


def _views(answers: Mapping[str, dict[int, View] | StratagemError]) -> dict[int, View]:
    """Return the latest view of each task that a server has told."""
    latest: dict[int, View] = {}
    for answer in answers.values():
        for task, view in ({} if isinstance(answer, StratagemError) else answer).items():
            if task not in latest or view.epoch > latest[task].epoch:
                latest[task] = view
    if not latest:
        raise _reason([each for each in answers.values() if isinstance(each, StratagemError)])
    return dict(sorted(latest.items()))


def _reason(errors: list[StratagemError]) -> StratagemError:
    if not errors or any(isinstance(error, UnimplementedError) for error in errors):
        return FailedPreconditionError(
            "the servers of this cluster keep their tasks: they have no --arbiter, or they have "
            "replicas. Start all of them with the same --arbiter and one replica each, or by "
            "`stratagem run --movable`"
        )
    return errors[0]
