"""Where the tasks of a cluster are, by the word of the arbiter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count

from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.replication.arbiters.arbiter import Arbiter
from stratagem_psserver.replication.arbiters.schemes import arbiter_of
from stratagem_psserver.settings import ServerSettings


class Locations:
    """Reads the views of tasks, which name the servers that serve them.

    Args:
        settings: Those of a server that has the arbiter of all tasks.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._arbiters: dict[int, Arbiter] = {}

    async def view_of(self, task: int) -> View | None:
        """Return the view of a task; None if no server has begun it.

        Raises:
            UnavailableError: The arbiter cannot be reached.
            DataLossError: What it has is no view.
        """
        return await (await self._arbiter_of(task)).read()

    async def of(self, tasks: Iterable[int]) -> Mapping[int, View]:
        """Return the views of those tasks among some that a server has begun; as `view_of`."""
        found = {task: await self.view_of(task) for task in tasks}
        return {task: view for task, view in found.items() if view is not None}

    async def all(self) -> Mapping[int, View]:
        """Return the views of all tasks up to the first that no server has begun; as `view_of`."""
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
        """Release what it holds."""
        for arbiter in self._arbiters.values():
            await arbiter.close()
