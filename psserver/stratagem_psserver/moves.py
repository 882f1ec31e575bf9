"""The tasks of one server, of which some have moved to it, and giving them to other servers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from stratagem_proto.errors import FailedPreconditionError, NotFoundError, StratagemError
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_proto.wire.status import from_rpc_error
from stratagem_psserver.replicated_service import ReplicatedService
from stratagem_psserver.replication.arbiter import Arbiter
from stratagem_psserver.replication.calls import ask, handshake_of
from stratagem_psserver.replication.registers import arbiter_of
from stratagem_psserver.rpcs.status import nbytes_of
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.asking import Question
from stratagem_rpc.channel import ASKING_CHANNEL_OPTIONS, Expected, open_aio_channel
from stratagem_rpc.server_log import LOG
from stratagem_rpc.serving.rpc_boundary import RpcBoundary, handler_of, unary_method


class Locations:
    """Reads the views of tasks, which name the servers that serve them, from their arbiters."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._arbiters: dict[int, Arbiter] = {}

    async def view_of(self, task: int) -> View | None:
        """Return the view of a task; None if no server has begun it; raise as `Arbiter.read`."""
        return await (await self._arbiter_of(task)).read()

    async def begin(self, task: int) -> tuple[int, View]:
        """Have this server serve a task that none has begun; return it with its view.

        Raises:
            UnavailableError: The arbiter cannot be reached.
            DataLossError: What it has is no view.
        """
        # The server of that number takes it as its own of before.
        first = View(epoch=1, primary=Replica(index=self._settings.server_number))
        while (view := await self.view_of(task)) is None:
            await (await self._arbiter_of(task)).replace(None, first)
        return task, view

    async def views_of(self, tasks: Iterable[int]) -> Mapping[int, View]:
        """Return the views of those tasks among some that a server has begun."""
        found = {task: await self.view_of(task) for task in tasks}
        return {task: view for task, view in found.items() if view is not None}

    async def all(self) -> Mapping[int, View]:
        """Return the views of all tasks up to the first that no server has begun."""
        found: dict[int, View] = {}
        for task in count():
            view = await self.view_of(task)
            if view is None:
                return found
            found[task] = view
        raise AssertionError

    async def _arbiter_of(self, task: int) -> Arbiter:
        if task not in self._arbiters:
            settings = replace(self._settings, task=task, server=self._settings.server_number)
            made = await asyncio.get_running_loop().run_in_executor(None, arbiter_of, settings)
            # Another call may have made one meanwhile.
            if self._arbiters.setdefault(task, made) is not made:
                await made.close()
        return self._arbiters[task]

    async def close(self) -> None:
        for arbiter in self._arbiters.values():
            await arbiter.close()


_RETRY_SECONDS = 1.0

# The calls that make work, by the first messages of their requests.
_WORK = ("ReadRequest", "UpdateHeader", "AssignHeader", "CommitContributionRequest")


class TaskServer(Protocol):
    """What serves one task in this process, at an address of its own."""

    @property
    def replicated(self) -> ReplicatedService:
        """Answers clients while the task is here, and tells them where it is otherwise."""

    def start(self) -> None:
        """Serve, or tell clients where the task is."""

    def stop(self, grace: float | None = None) -> None:
        """Stop; a repetition does nothing."""


NewTaskServer: TypeAlias = Callable[[ServerSettings], TaskServer]
"""Makes what serves a task, by its settings."""


class ServedTasks:
    """Serves the tasks of a server, and takes others; used on the event loop.

    Attributes:
        locations: Where all tasks are.
        is_draining: Whether no task may move to this server.
    """

    def __init__(
        self, home: TaskServer, settings: ServerSettings, new_server: NewTaskServer
    ) -> None:
        self._home, self._settings, self._new_server = home, settings, new_server
        self._servers = {settings.task: home}
        self.locations = Locations(settings)
        self.is_draining = False
        self._taking: int | None = None
        self._move: asyncio.Future[View] | None = None
        self._process = os.urandom(SESSION_ID_BYTES)

    @property
    def number(self) -> int:
        return self._settings.server_number

    @property
    def label(self) -> str:
        return f"server {self.number}"

    async def recover(self) -> None:
        """Begin the tasks of this server, or serve what an earlier process of its number has."""
        while True:
            try:
                shared = [await self.locations.begin(each) for each in self._settings.first_shared]
                for task, view in {**dict(shared), **await self.locations.all()}.items():
                    if self.number in _numbers(view):
                        await self._server_of(task)
                return
            except StratagemError as error:
                LOG.warning("cannot look for tasks", server=self.label, why=error.message)
            await asyncio.sleep(_RETRY_SECONDS)

    async def take(self, task: int, seconds: float, bytes_per_second: int = 0) -> View:
        """Have a task move to this server, and return the view in which it serves it.

        Once begun, this goes on to its end, even if the caller is gone.

        Args:
            task: Its index.
            seconds: The longest time until its state has come.
            bytes_per_second: The most bytes of values to be sent, and then to be loaded, in a
                second; 0 for as many as possible.

        Raises:
            NotFoundError: There is no such task.
            FailedPreconditionError: The server takes another one, or none; or the server that has
                the task refuses this one.
            DeadlineExceededError: It takes longer; the task stays where it is.
        """
        if self.is_draining:
            raise FailedPreconditionError(
                f"{self.label} takes no tasks, for it is to end; give /job:ps/task:{task} to "
                "another server, or add this one again by `stratagem servers add`"
            )
        if self._taking is not None:
            raise FailedPreconditionError(
                f"{self.label} is about to take /job:ps/task:{self._taking}; ask for another task "
                "once it serves that one"
            )
        self._taking = task
        self._move = asyncio.ensure_future(self._take(task, seconds, bytes_per_second))
        return await asyncio.shield(self._move)

    async def _take(self, task: int, seconds: float, bytes_per_second: int) -> View:
        try:
            server = await self._server_of(task)
            view = await server.replicated.take_over(seconds, bytes_per_second)
        finally:
            self._taking = None
        LOG.info("has taken a task", server=self.label, task=task, epoch=view.epoch)
        return view

    async def _server_of(self, task: int) -> TaskServer:
        if task not in self._servers:
            if await self.locations.view_of(task) is None:
                raise NotFoundError(
                    f"no server has begun /job:ps/task:{task}; name a task that `stratagem servers "
                    "list` shows"
                )
            made = self._new_server(_elsewhere(self._settings, task))
            await asyncio.get_running_loop().run_in_executor(None, made.start)
            self._servers[task] = made
        return self._servers[task]

    def describe(self) -> pb.DescribeServerResponse:
        return pb.DescribeServerResponse(
            server=self.number,
            is_draining=self.is_draining,
            taking=self._taking,
            process=self._process,
            address=self._home.replicated.address,
            tasks=[
                _described(task, server.replicated)
                for task, server in sorted(self._servers.items())
                if server.replicated.is_serving
            ],
        )

    async def close(self) -> None:
        """Take what it is about to take no more, and release what it holds."""
        if self._move is not None:
            self._move.cancel()
        await self.locations.close()

    def stop_others(self, grace: float | None) -> None:
        """Stop what serves other tasks than the first one; not on the event loop."""
        for task in sorted(self._servers.keys() - {self._settings.task}):
            self._servers.pop(task).stop(grace)


def _numbers(view: View) -> set[int]:
    return {getattr(view, part).index for part in ("primary", "backup") if view.HasField(part)}


def _elsewhere(settings: ServerSettings, task: int) -> ServerSettings:
    """Return the settings by which the server of some settings serves another task."""
    return replace(
        settings,
        task=task,
        tasks=0,
        servers=0,
        server=settings.server_number,
        bind=_any_port(settings.bind),
        health_bind=_any_port(settings.health_bind),
        metrics_bind="",
        data_port=min(settings.data_port, 0),
    )


def _any_port(address: str) -> str:
    return f"{address.rpartition(':')[0]}:0"


def _described(task: int, replicated: ReplicatedService) -> pb.ServedTask:
    state, since = replicated.state, replicated.served_since
    return pb.ServedTask(
        task=task,
        bytes=sum(map(nbytes_of, state.store.variables())),
        calls=sum(map(state.figures.answered, _WORK)),
        seconds=state.clock() - since,
        unheard=sum(session.heard <= since for session in state.ledger.opened()),
        obstacle=replicated.obstacle(),
    )


SERVICE = pb.DESCRIPTOR.services_by_name["ServersService"].full_name

_ASK_SECONDS = 2.0

_Response = TypeVar("_Response", bound=Message)


class OtherServers:
    """Calls servers by their addresses; a call raises StratagemError."""

    def __init__(self, settings: ServerSettings) -> None:
        self._token, self._asking = settings.token, handshake_of(settings)
        self._expected, self._certificates = Expected(settings.job), settings.certificates

    async def describe(self, address: str) -> pb.DescribeServerResponse:
        request = pb.DescribeServerRequest(asking=self._asking)
        question = Question(f"/{SERVICE}/DescribeServer", request, pb.DescribeServerResponse)
        return await self._call(address, question, _ASK_SECONDS)

    async def take(self, address: str, task: int, seconds: float) -> View:
        """Have a server take a task in so many seconds; return the view in which it serves it."""
        request = pb.TakeTaskRequest(asking=self._asking, task=task, seconds=seconds)
        question = Question(f"/{SERVICE}/TakeTask", request, pb.TakeTaskResponse)
        return (await self._call(address, question, seconds + _ASK_SECONDS)).view

    async def _call(self, address: str, question: Question[_Response], seconds: float) -> _Response:
        channel = open_aio_channel(
            address, ASKING_CHANNEL_OPTIONS, self._expected, self._certificates
        )
        try:
            return await ask(channel, self._token, question, seconds)
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"the server at {address}", question.method) from error


# Clients that make no requests find out by their heartbeats, every 3 s, where a task is.
_FOLLOWING_SECONDS = 4.0
_POLL_SECONDS = 0.1


@dataclass
class _Taker:
    """A server that may be given tasks, and the bytes of those that it has."""

    address: str
    bytes: int


class _Given(NamedTuple):
    """A task that was given away, and the view in which another server has it."""

    task: int
    view: View


class Departure:
    """Gives what a server has to others, as long as there is time; used on the event loop."""

    def __init__(self, served: ServedTasks, others: OtherServers, seconds: float) -> None:
        self._served, self._others = served, others
        self._until = time.monotonic() + seconds

    async def give_all(self) -> None:
        """Give each task to the server that then has the fewest bytes of those that take it."""
        if tasks := sorted(self._served.describe().tasks, key=lambda each: -each.bytes):
            takers = await self._takers()
            given = [each for task in tasks if (each := await self._give(task, takers))]
            await self._await_clients(given)

    async def _takers(self) -> list[_Taker]:
        """Return the other servers that take tasks."""
        try:
            views = (await self._served.locations.all()).values()
        except StratagemError as error:
            LOG.warning("cannot look for tasks", server=self._served.label, why=error.message)
            return []
        addresses = {view.primary.index: view.primary.address for view in views}
        addresses.pop(self._served.number, None)
        found = await asyncio.gather(*map(self._taker, addresses.values()))
        return [each for each in found if each is not None]

    async def _taker(self, address: str) -> _Taker | None:
        with suppress(StratagemError):
            answer = await self._others.describe(address)
            if not answer.is_draining:
                return _Taker(address, sum(task.bytes for task in answer.tasks))
        return None

    async def _give(self, task: pb.ServedTask, takers: Sequence[_Taker]) -> _Given | None:
        for taker in sorted(takers, key=lambda each: each.bytes):
            if (left := self._until - time.monotonic()) <= 0.0:
                break
            try:
                view = await self._others.take(taker.address, task.task, left)
            except StratagemError as error:
                LOG.warning("cannot give a task away", task=task.task, why=error.message)
            else:
                taker.bytes += task.bytes
                return _Given(task.task, view)
        return None

    async def _await_clients(self, given: Sequence[_Given]) -> None:
        """Wait until all clients have asked for the tasks where they are now."""
        until = min(self._until, time.monotonic() + _FOLLOWING_SECONDS)
        for task, view in given:
            while time.monotonic() < until:
                try:
                    answer = await self._others.describe(view.primary.address)
                except StratagemError:
                    break
                if not any(each.unheard for each in answer.tasks if each.task == task):
                    break
                await asyncio.sleep(_POLL_SECONDS)


_SERVICE = pb.DESCRIPTOR.services_by_name["ServersService"]


def servers_handler(served: ServedTasks, boundary: RpcBoundary) -> grpc.GenericRpcHandler:
    """Return the handler of the service; none of its calls needs a session."""
    rpcs = ServersRpcs(served)
    methods = {
        "LocateTasks": unary_method(pb.LocateTasksRequest, rpcs.locate),
        "DescribeServer": unary_method(pb.DescribeServerRequest, rpcs.describe),
        "TakeTask": unary_method(pb.TakeTaskRequest, rpcs.take),
        "SetDraining": unary_method(pb.SetDrainingRequest, rpcs.set_draining),
    }
    return handler_of(boundary, _SERVICE, methods)


class ServersRpcs:
    """LocateTasks, DescribeServer, TakeTask and SetDraining."""

    def __init__(self, served: ServedTasks) -> None:
        self._served = served

    async def locate(self, request: pb.LocateTasksRequest) -> pb.LocateTasksResponse:
        locations = self._served.locations
        found = await (locations.views_of(request.tasks) if request.tasks else locations.all())
        views = [pb.TaskView(task=task, view=view) for task, view in found.items()]
        return pb.LocateTasksResponse(tasks=views)

    async def describe(self, request: pb.DescribeServerRequest) -> pb.DescribeServerResponse:
        return self._served.describe()

    async def take(self, request: pb.TakeTaskRequest) -> pb.TakeTaskResponse:
        pace = request.bytes_per_second
        view = await self._served.take(request.task, request.seconds, pace)
        return pb.TakeTaskResponse(view=view)

    async def set_draining(self, request: pb.SetDrainingRequest) -> pb.SetDrainingResponse:
        self._served.is_draining = request.draining
        return pb.SetDrainingResponse()
