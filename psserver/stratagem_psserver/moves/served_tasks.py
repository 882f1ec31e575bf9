"""The tasks of one server: the one that it began with, and those that have moved to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

from stratagem_proto.errors import FailedPreconditionError, NotFoundError, StratagemError
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.server_log import LOG
from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.moves.locations import Locations
from stratagem_psserver.replicated_service import ReplicatedService
from stratagem_psserver.rpcs.status import nbytes_of
from stratagem_psserver.settings import ServerSettings

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

    Args:
        home: What serves the task that the server began with.
        settings: Its settings.
        new_server: Makes what serves another task.

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
        """The number of the server."""
        return self._settings.server_number

    @property
    def label(self) -> str:
        """The server, for messages."""
        return f"server {self.number}"

    async def recover(self) -> None:
        """Serve again what an earlier process with the number of this server has served."""
        while True:
            try:
                for task, view in (await self.locations.all()).items():
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
        self._require_willing(task)
        self._taking = task
        self._move = asyncio.ensure_future(self._take(task, seconds, bytes_per_second))
        return await asyncio.shield(self._move)

    def _require_willing(self, task: int) -> None:
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
            await self._require_begun(task)
            made = self._new_server(_elsewhere(self._settings, task))
            await asyncio.get_running_loop().run_in_executor(None, made.start)
            self._servers[task] = made
        return self._servers[task]

    async def _require_begun(self, task: int) -> None:
        if await self.locations.view_of(task) is None:
            raise NotFoundError(
                f"no server has begun /job:ps/task:{task}; name a task that `stratagem servers "
                "list` shows"
            )

    def describe(self) -> pb.DescribeServerResponse:
        """Return the message that describes the server and what its tasks need."""
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
