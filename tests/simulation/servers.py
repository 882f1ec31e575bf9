"""Parameter servers of a simulation: places where runs of a process begin and end."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratagem_proto.errors import UnavailableError
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_storage.log import LogReader
from tests.simulation.disk import Disk
from tests.simulation.server_run import ServerRun
from tests.simulation.world import World

LEASE_SECONDS, RECONNECT_SECONDS = 10.0, 4.0

_RESTART_SECONDS = 1.0


class SimulatedServer:
    """One server, which can end at any moment and start anew.

    With a disk it keeps a log there, and its next run goes on where it ended.

    Args:
        world: The simulation that it is part of.
        name: Its name in the trace and in the network, which no other process has.
        task: Its index.
        disk: Where it keeps its log; None for a server that keeps none.
        others: Further settings.

    Attributes:
        name: As the argument.
        settings: Those of the server.
        run: The present run of the process, or the last one.
        served: Called after each call, and after each look for leases that have ended.
        lose: Called with the folder of the state once a run has ended; returns what it has taken
            away of what the run had answered, "" for nothing.
    """

    def __init__(
        self, world: World, name: str, task: int, disk: Disk | None = None, **others: Any
    ) -> None:
        self.name = name
        self._world, self._disk = world, disk
        self._folder = disk.machine(self.name) if disk else None
        self.settings = ServerSettings(
            task=task,
            lease_seconds=LEASE_SECONDS,
            reconnect_seconds=RECONNECT_SECONDS,
            durability="none" if disk is None else "log",
            durability_folder=str(self._folder or ""),
            log_records=world.chance.choice((20, 100_000)),
            **others,
        )
        self.served: Callable[[], None] = lambda: None
        self.lose: Callable[[Path], str] = lambda state: ""
        self.run: ServerRun
        self._begin()

    @property
    def state(self) -> ServerState:
        """The state of the run."""
        return self.run.state

    @property
    def is_up(self) -> bool:
        """Whether the run answers calls."""
        return self.run.is_up

    @property
    def logs(self) -> bool:
        """Whether the server writes its changes to a log."""
        return self._folder is not None

    @property
    def copies(self) -> bool:
        """Whether the server copies at once what comes in memory that clients share with it."""
        return self.logs

    def start(self) -> None:
        """Begin a run of the process; whatever a run before knew is gone.

        If it cannot begin, it is started again, as by a supervisor. One that was started already,
        after another fault, goes on.
        """
        if self.run.has_ended:
            self._begin()

    def _begin(self) -> None:
        try:
            self.run = self._made()
        except UnavailableError as error:
            self._world.note(self.name, f"cannot start: {error.message}")
            self._world.loop.call_later(_RESTART_SECONDS, self.start)
            return
        self.run.begin()
        self._world.note(self.name, "starts")

    def _made(self) -> ServerRun:
        return ServerRun(self._world, self.name, self.settings, lambda: self.served())

    def stop(self) -> None:
        """End the run; its log stays as it is then."""
        self.run.end()
        if self._folder is not None:
            self._leave(self._folder)
            self.run.release()
            self._tear(self._folder)
            self._lose(self._folder)
        self._world.note(self.name, "stops")

    @property
    def state_folder(self) -> Path:
        """What the task has on the disk."""
        assert self._folder is not None
        return self._folder / f"ps-{self.settings.task}"

    def _lose(self, folder: Path) -> None:
        if what := self.lose(self.state_folder):
            assert self._disk is not None
            self._disk.settle(folder)
            self._world.note(self.name, f"has lost {what}")

    def _leave(self, folder: Path) -> None:
        """Leave on the disk what is there when the process, or the machine, ends."""
        assert self._disk is not None
        loses_power = self._world.strikes("power loss", 0.5)
        begun = self._world.chance.choice(self.run.work) if self.run.work else None
        self._disk.end(folder, loses_power, begun)
        self._world.note(self.name, "loses power" if loses_power else "is killed")

    def _tear(self, folder: Path) -> None:
        """Leave a part of a batch at the end of the log, which was being written."""
        segments = sorted(folder.glob("*/segment-*.log"))
        if segments and self._world.chance.random() < 0.5:
            reader = LogReader(segments[-1:])
            deque(reader.records(), 0)
            with segments[-1].open("r+b") as file:
                file.seek(*((reader.tail.offset,) if reader.tail else (0, os.SEEK_END)))
                file.write(self._world.chance.randbytes(self._world.chance.randint(1, 60)))
            self._world.faults["torn log"] += 1
