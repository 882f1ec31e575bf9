"""Servers in this process whose tasks can move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import UnavailableError
from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_proto.v1.replication_pb2 import View
from stratagem_proto.v1.session_pb2 import ROLE_OPERATOR, OpenSessionRequest
from stratagem_psserver.moves import SERVICE
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient
from tests.relays import Relay
from tests.waiting import eventually


def asking() -> OpenSessionRequest:
    return OpenSessionRequest(protocol_version=PROTOCOL_VERSION, role=ROLE_OPERATOR)


_Response = TypeVar("_Response", bound=Message)


class MovableServers:
    """Servers with one arbiter, which keep their files in a folder.

    Args:
        folder: The folder, which exists.
        places: Keeps the addresses of the servers.
        others: Further settings of all of them.
    """

    def __init__(self, folder: Path, places: ExitStack, **others: Any) -> None:
        arbiter = f"file:{folder / 'arbiter'}"
        self._others = {"arbiter": arbiter, "token": TOKEN, "failover_seconds": 3.0, **others}
        if others.get("durability") == "log":
            self._others["durability_folder"] = str(folder)
        self._places: Mapping[int, str] = defaultdict(
            lambda: str(places.enter_context(ReservedAddress()))
        )
        self.servers: dict[int, ParameterServer] = {}

    def start(self, number: int, **others: Any) -> ParameterServer:
        """Start a server, at an address of its own that it has each time."""
        settings = ServerSettings(self._places[number], task=number, **{**self._others, **others})
        server = self.servers[number] = ParameterServer(settings)
        server.start()
        eventually(lambda: self._is_settled(number))
        return server

    def _is_settled(self, number: int) -> bool:
        """Whether a server serves the task that it began with, or knows who does."""
        try:
            view = self.located(number, number).get(number)
        except UnavailableError:
            # On a busy machine, an arbiter may not answer in time.
            return False
        return view is not None and (view.primary.index != number or number in self.tasks(number))

    def relay(self, number: int) -> Relay:
        """Return what a server can be reached by, where this can be held up."""
        return Relay(int(self._places[number].rpartition(":")[2]))

    @property
    def addresses(self) -> list[str]:
        """Where the servers began, by their numbers."""
        return [server.address for _, server in sorted(self.servers.items())]

    def call(
        self, number: int, method: str, request: Any, response_type: type[_Response]
    ) -> _Response:
        """Call a server."""
        with RawClient(self.servers[number].address, TOKEN) as client:
            client.prove(method, request.asking)
            return client.unary(method, request, response_type, service=SERVICE)

    def move(
        self, task: int, number: int, seconds: float = 20.0, bytes_per_second: int = 0
    ) -> View:
        """Move a task to a server, and return the view in which that serves it."""
        request = pb.TakeTaskRequest(
            asking=asking(), task=task, seconds=seconds, bytes_per_second=bytes_per_second
        )
        return self.call(number, "TakeTask", request, pb.TakeTaskResponse).view

    def described(self, number: int) -> pb.DescribeServerResponse:
        """What a server says of itself."""
        request = pb.DescribeServerRequest(asking=asking())
        return self.call(number, "DescribeServer", request, pb.DescribeServerResponse)

    def tasks(self, number: int) -> list[int]:
        """The tasks that a server serves."""
        return [each.task for each in self.described(number).tasks]

    def located(self, number: int, *tasks: int) -> dict[int, View]:
        """The views of tasks, by the word of a server."""
        request = pb.LocateTasksRequest(asking=asking(), tasks=tasks)
        found = self.call(number, "LocateTasks", request, pb.LocateTasksResponse)
        return {each.task: each.view for each in found.tasks}

    def drain(self, number: int, draining: bool = True) -> None:
        """Have a server take no tasks."""
        request = pb.SetDrainingRequest(asking=asking(), draining=draining)
        self.call(number, "SetDraining", request, pb.SetDrainingResponse)


@contextmanager
def movable(folder: Path, count: int = 2, **others: Any) -> Iterator[MovableServers]:
    """Starts servers, and stops those that are left at the end."""
    with ExitStack() as places:
        made = MovableServers(folder, places, **others)
        try:
            for number in range(count):
                made.start(number)
            yield made
        finally:
            for server in made.servers.values():
                server.stop(grace=0)


@contextmanager
def held_back(server: ParameterServer) -> Iterator[Callable[[], None]]:
    """Keeps what a server has from moving until the end, or until what this yields is called."""
    state, loop, reader = server._state, server._loop, b"somebody"

    async def hold() -> None:
        state.held.hold(reader, b"cut", state.store)

    async def let_go() -> None:
        state.held.release(reader)

    loop.run(hold())
    try:
        yield lambda: loop.run(let_go())
    finally:
        loop.run(let_go())


@contextmanager
def client_at(address: str, before: RawClient | None = None) -> Iterator[RawClient]:
    """Opens a session, or resumes that of another client."""
    with RawClient(address, TOKEN) as client:
        if before is not None:
            client.session_id, client.sequence = before.session_id, before.sequence
        client.open()
        yield client
