"""What all servers say of themselves at about one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stratagem._ps_client.moving.calls import ServerCalls
from stratagem._ps_client.moving.plan import Placement, TaskLoad
from stratagem_proto.errors import (
    FailedPreconditionError,
    NotFoundError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
)
from stratagem_proto.v1.replication_pb2 import View
from stratagem_proto.v1.servers_pb2 import DescribeServerResponse


@dataclass(frozen=True)
class ServerTasks:
    """A server, and the tasks of the job ps that it serves.

    Attributes:
        number: Its number, which is the index of the task that it began with.
        address: The "host:port" at which it began.
        is_draining: Whether it is given no tasks, because it is to end.
        tasks: Its tasks, by index.
    """

    __module__ = "stratagem"

    number: int
    address: str
    is_draining: bool
    tasks: tuple[TaskLoad, ...]


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
