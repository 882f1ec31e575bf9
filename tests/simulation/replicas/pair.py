"""A simulated task of two replicas, and what may befall it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from stratagem_proto.v1.replication_pb2 import STANDING_BACKUP, STANDING_FENCED, STANDING_PRIMARY
from stratagem_psserver.persistence.images import moment_of
from stratagem_psserver.replication.verification import digests_beside
from stratagem_psserver.state import ServerState
from tests.logged_servers import described
from tests.simulation.disk import Disk
from tests.simulation.network import Network
from tests.simulation.replicas.acknowledgements import Acknowledgements
from tests.simulation.replicas.arbiter import Register
from tests.simulation.replicas.replica import SimulatedReplica, Surroundings

REPLICA_STORMS = (
    "replica crash",
    "replica pause",
    "replica partition",
    "arbiter away",
    "hand-over",
)

MOVING_STORMS = ("replica crash", "replica pause", "replica partition", "arbiter away", "move")

_FAILOVER_SECONDS = (2.0, 4.0)
_LONGEST_RESTART_SECONDS = 5.0

# In fair weather a task has both replicas after so long.
_SETTLED_SECONDS = 120.0
_LOOK_SECONDS = 0.5


class SimulatedPair:
    """A task with a primary and a backup; as `SimulatedServer` to those who look at its state.

    Args:
        network: Reaches its processes.
        task: Its index.
        disk: Where they keep logs; None if they keep none.
        moves: Whether it has one replica, which moves between the two processes.

    Attributes:
        name: Its name.
        replicas: Its processes.
        register: Its arbiter.
    """

    def __init__(self, network: Network, task: int, disk: Disk | None, moves: bool = False) -> None:
        self.name, self._moves = f"ps:{task}", moves
        self._network, self._world, self._logs = network, network.world, disk is not None
        self.register = Register(self._world, task)
        answers = Acknowledgements(self._world, self.register, self._other_of)
        patience = self._world.chance.choice(_FAILOVER_SECONDS)
        around = Surroundings(network, self.register, self._at, answers.note, disk, patience, moves)
        self.replicas: list[SimulatedReplica] = []
        self.replicas += (SimulatedReplica(task, index, around) for index in range(2))

    def _at(self, address: str) -> SimulatedReplica | None:
        return next((one for one in self.replicas if one.name == address), None)

    def _other_of(self, replica: SimulatedReplica) -> SimulatedReplica:
        (other,) = (one for one in self.replicas if one is not replica)
        return other

    @property
    def primary(self) -> SimulatedReplica:
        """The replica that serves at present, or one of them."""
        view = self.register.view
        number = view.primary.index if view and view.HasField("primary") else -1
        known = {replica.settings.replica_number: replica for replica in self.replicas}
        return known.get(number, self.replicas[0])

    @property
    def state(self) -> ServerState:
        """The state that clients have access to."""
        return self.primary.run.replicated.state

    @property
    def served(self) -> Callable[[], None]:
        """Called after each call."""
        return self.replicas[0].served

    @served.setter
    def served(self, served: Callable[[], None]) -> None:
        for replica in self.replicas:
            replica.served = served

    def strike(self, storm: str, seconds: float) -> None:
        """Have one of its storms come over it."""
        replica = self._world.chance.choice(self.replicas)
        if storm == "move":
            self._move()
        else:
            self._strike(replica, storm, seconds)

    def _strike(self, replica: SimulatedReplica, storm: str, seconds: float) -> None:
        if storm == "replica crash":
            if self._is_dispensable(replica):
                self._world.note(replica.name, "storm: crash")
                replica.stop()
                self._restart(replica)
        elif storm == "replica pause":
            if replica.is_up:
                self._world.note(replica.name, f"storm: stands still for {seconds:.2f} s")
                replica.run.stand_still(seconds)
        elif storm == "replica partition":
            self._part(replica, seconds)
        elif storm == "arbiter away":
            self._world.note(self.register.name, f"storm: is away for {seconds:.2f} s")
            self.register.leave(seconds)
        elif self._is_dispensable(replica) and not replica.run.stands_still:
            self._world.note(replica.name, "storm: leaves")
            leaving = self._world.loop.create_task(replica.leave())
            leaving.add_done_callback(lambda _: self._restart(replica))

    def _move(self) -> None:
        (target,) = (one for one in self.replicas if one is not self.primary)
        if target.is_up and not target.run.stands_still:
            self._world.note(target.name, "storm: is to take the task")
            self._world.loop.create_task(target.take_over())

    def _part(self, replica: SimulatedReplica, seconds: float) -> None:
        chance = self._world.chance
        there, back = chance.choice(((True, True), (True, False), (False, True)))
        other = self._other_of(replica)
        whom = chance.choice(("arbiter", "replica", "both"))
        self._world.note(replica.name, f"storm: is cut off from {whom} for {seconds:.2f} s")
        if whom != "replica":
            self._network.part(replica.name, self.register.name, there, back, seconds)
        if whom != "arbiter":
            self._network.part(replica.name, other.name, there, back, seconds)
            self._network.part(other.name, replica.name, back, there, seconds)

    def _restart(self, replica: SimulatedReplica) -> None:
        seconds = self._world.chance.random() * _LONGEST_RESTART_SECONDS
        self._world.loop.call_later(seconds, replica.start)

    def _is_dispensable(self, replica: SimulatedReplica) -> bool:
        """Return whether a replica may end without a loss of what the task has in memory.

        Without logs, what only one of them has is lost with it, and that a view names one which
        asks for it at present and then ends. So is what the other one asks for at present to leave
        to this one, and what moves to this one, which has just said that it is there.
        """
        if self._logs or not replica.is_up:
            return replica.is_up
        other = self._other_of(replica)
        view = self.register.view
        asked = [following for _, following in self.register.asked]
        asked += self.register.wanted.values()
        is_handed_over = self._moves and other.standing == STANDING_FENCED
        if view is None or not other.instance or other.is_leaving or is_handed_over:
            return False
        return all(
            other.instance in (each.primary.instance, each.backup.instance)
            for each in [view, *asked]
        )

    async def settle(self) -> None:
        """Wait until it has a primary and a backup, as it has to in fair weather."""
        until = self._world.loop.time() + _SETTLED_SECONDS
        while self._world.loop.time() < until:
            if self._is_settled():
                return
            await asyncio.sleep(_LOOK_SECONDS)
        reports = [str(one.report()) for one in self.replicas]
        self._world.require(False, f"{self.name} has no primary with a backup: {reports}")

    def _is_settled(self) -> bool:
        if self._moves:
            report = self.primary.report()
            return report is not None and report.standing == STANDING_PRIMARY
        reports = [one.report() for one in self.replicas]
        standings = {report.standing for report in reports if report is not None}
        return standings == {STANDING_PRIMARY, STANDING_BACKUP}

    async def check_equal(self) -> None:
        """Check that both replicas have the same state, to the bit."""
        if self._moves:
            return
        primary = self.primary
        backup = self._other_of(primary)
        standby = await backup.standby()
        if standby is None:
            self._world.require(False, f"{backup.name} is the backup and has no state")
            return
        mine, others = described(primary.run.replicated.state), described(standby.state)
        for name, value in mine.items():
            what = (
                f"{backup.name} has other {name} than {primary.name}: {others[name]}, not {value}"
            )
            self._world.require(others[name] == value, what)
        digests = [await _digest(state) for state in (primary.run.replicated.state, standby.state)]
        self._world.require(digests[0] == digests[1], f"the digests of {self.name} differ")


async def _digest(state: ServerState) -> Mapping[str, bytes]:
    moment = await moment_of(state)
    return {} if moment is None else await digests_beside(state, moment)
