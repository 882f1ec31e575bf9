"""One replica of a simulated task: the real one, on a virtual machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from stratagem_proto.errors import StratagemError
from stratagem_proto.v1.replication_pb2 import ReplicationStatus, Standing
from stratagem_psserver.replication.standby import Standby
from tests.simulation.disk import Disk
from tests.simulation.network import Network
from tests.simulation.replicas.arbiter import Register, SimulatedArbiter
from tests.simulation.replicas.peers import SimulatedPeers
from tests.simulation.replicas.replica_run import ReplicaRun
from tests.simulation.servers import SimulatedServer

_LEAVING_SECONDS, _MOVING_SECONDS = 5.0, 20.0

# The number of the second server of a task; the first one has that of the task.
_OTHER = 100


def _place(task: int, index: int) -> dict[str, int]:
    """Return the settings of one of the servers between which a task moves."""
    return {"server": task + _OTHER} if index else {}


class Surroundings(NamedTuple):
    """What the replicas of a task share.

    Attributes:
        network: Reaches the other replica, the arbiter and clients.
        register: The arbiter.
        find: Returns the replica at an address.
        hears: Hears of each answer to a client: whose, of which method, and when it was allowed.
        disk: Where they keep logs; None if they keep none.
        patience: For how long a backup hears nothing before it takes over, in seconds.
        moves: Whether the task has one replica, which moves between these processes.
    """

    network: Network
    register: Register
    find: Callable[[str], SimulatedReplica | None]
    hears: Callable[[SimulatedReplica, str, float], None]
    disk: Disk | None
    patience: float
    moves: bool = False


class SimulatedReplica(SimulatedServer):
    """One of the processes of a task.

    Args:
        task: The index of the task.
        index: That of the replica.
        around: What it shares with the other one.

    Attributes:
        is_leaving: Whether it leaves the task to the other one.
    """

    run: ReplicaRun

    def __init__(self, task: int, index: int, around: Surroundings) -> None:
        self._around, self.is_leaving = around, False
        place = _place(task, index) if around.moves else {"replicas": 2, "replica": index}
        others = {"arbiter": "-", "failover_seconds": around.patience, **place}
        super().__init__(around.network.world, f"ps:{task}.{index}", task, around.disk, **others)

    def _made(self) -> ReplicaRun:
        around = self._around
        arbiter = SimulatedArbiter(around.network, around.register, self.name)
        around.register.wanted.pop(self.name, None)
        peers = SimulatedPeers(around.network, self, around.find)

        def hears(method: str, allowed: float) -> None:
            around.hears(self, method, allowed)

        reached = arbiter, peers
        served = self._serves
        return ReplicaRun(self._world, self.name, self.settings, served, reached, hears)

    @property
    def copies(self) -> bool:
        return super().copies and not self.run.stands_still

    def _serves(self) -> None:
        if self.run.replicated.is_serving:
            self.served()

    async def leave(self) -> None:
        """Leave the task to the other replica, and end."""
        run, self.is_leaving = self.run, True
        await asyncio.wait([run.leave()], timeout=_LEAVING_SECONDS)
        self.is_leaving = False
        if self.run is run and not run.has_ended:
            self.stop()

    async def take_over(self) -> None:
        """Have the task move to this process, if that can be."""
        with suppress(StratagemError):
            await self.run.take_over(_MOVING_SECONDS)

    def report(self) -> ReplicationStatus | None:
        """Return what it tells of itself; None if it does not take part."""
        task = self.run.replicated._task
        return task.report() if task is not None and self.is_up else None

    @property
    def standing(self) -> Standing | None:
        """What it is at present, as in its report, which takes longer."""
        task = self.run.replicated._task
        return task._standing() if task is not None and self.is_up else None

    async def standby(self) -> Standby | None:
        """Return the state that it has as a backup, once all is applied; None if it has none."""
        task = self.run.replicated._task
        if task is None or (found := task._backup.standby) is None:
            return None
        while found.applied < found.position:
            await asyncio.sleep(0.1)
        return found

    @property
    def instance(self) -> bytes:
        """The state that it has."""
        report = self.report()
        return report.replica.instance if report is not None else b""
