"""Two replicas of a task in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stratagem_deploy.processes.resources import ReservedAddresses
from stratagem_proto.v1.replication_pb2 import ReplicationStatus, Standing
from stratagem_psserver.replication.standby import Standby
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.logged_servers import described
from tests.relays import Relay
from tests.waiting import eventually

_FAILOVER_SECONDS = 3.0
"""A busy machine stops a process for longer than a second now and then."""


class Pair:
    """Two replicas, which keep their files in a folder.

    Args:
        folder: The folder, which exists.
        places: Where they listen, again and again.
        others: Further settings of both.

    Attributes:
        servers: The latest of each replica, by its number.
    """

    def __init__(self, folder: Path, places: ReservedAddresses, **others: Any) -> None:
        self._folder, self._places = folder, places
        arbiter = f"file:{folder / 'arbiter'}"
        self._others = {"failover_seconds": _FAILOVER_SECONDS, "arbiter": arbiter, **others}
        if others.get("durability") == "log":
            self._others["durability_folder"] = str(folder)
        self.servers: dict[int, ParameterServer] = {}

    def start(self, index: int, **others: Any) -> ParameterServer:
        """Start a replica, at an address of its own that it has each time."""
        settings = ServerSettings(
            replicas=2,
            replica=index,
            bind=self._places.replicas[index],
            **{**self._others, **others},
        )
        server = self.servers[index] = ParameterServer(settings)
        server.start()
        return server

    def relay(self, index: int) -> Relay:
        """Return what a replica can be reached by, where this can be held up."""
        return Relay(int(self._places.replicas[index].rpartition(":")[2]))

    def await_backup(self) -> tuple[ParameterServer, ParameterServer]:
        """Wait until there is a backup; return the primary and the backup."""
        eventually(self._has_backup)
        first, second = self.servers.values()
        leads = standing_of(first) == Standing.STANDING_PRIMARY
        return (first, second) if leads else (second, first)

    def _has_backup(self) -> bool:
        reports = [*map(report_of, self.servers.values())]
        views = [report.view for report in reports]
        standings = {report.standing for report in reports}
        return standings == _BOTH and views[0] == views[1] and views[0].HasField("backup")

    def crash(self, server: ParameterServer) -> None:
        """End a replica in the midst of whatever it does."""
        server._loop.run(_crash(server))
        server.stop(grace=0)


_BOTH = {Standing.STANDING_PRIMARY, Standing.STANDING_BACKUP}


@contextmanager
def pair(folder: Path, first: Sequence[int] = (0, 1), **others: Any) -> Iterator[Pair]:
    """Starts replicas, and stops those that are left at the end.

    Args:
        folder: The folder in which they keep their files.
        first: The numbers of those that start.
        others: Further settings of both.
    """
    with ReservedAddresses(2) as places:
        made = Pair(folder, places, **others)
        try:
            for index in first:
                made.start(index)
            yield made
        finally:
            for server in made.servers.values():
                server.stop(grace=0)


async def _crash(server: ParameterServer) -> None:
    replicated = server._replicated
    assert replicated is not None and replicated._running is not None
    replicated._running.cancel()
    await asyncio.wait([replicated._running])
    if replicated._disk is not None:
        replicated._disk.persistence.stop()
        replicated._disk.log = None


def report_of(server: ParameterServer) -> ReplicationStatus:
    """What a replica says of itself."""
    return server._loop.run(_report(server))


async def _report(server: ParameterServer) -> ReplicationStatus:
    assert server._replicated is not None
    return server._replicated._require_task().report()


def standing_of(server: ParameterServer) -> Standing:
    return report_of(server).standing


def await_primary(server: ParameterServer) -> None:
    eventually(lambda: standing_of(server) == Standing.STANDING_PRIMARY)


def state_of_primary(server: ParameterServer) -> dict[str, Any]:
    """All that a primary knows, for comparison."""
    return described(server._state)


def standby_of(server: ParameterServer) -> Standby:
    """The state of a backup, once it has applied what has come."""

    def standby() -> Standby | None:
        assert server._replicated is not None
        return server._replicated._require_task()._backup.standby

    def is_up_to_date() -> bool:
        found = standby()
        return found is not None and found.applied == found.position

    eventually(is_up_to_date)
    found = standby()
    assert found is not None
    return found


def state_of_backup(server: ParameterServer) -> dict[str, Any]:
    """All that a backup knows, once it has applied what has come."""
    return described(standby_of(server).state)
