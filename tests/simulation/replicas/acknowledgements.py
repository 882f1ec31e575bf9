"""What replicas have answered clients, by their views."""

from __future__ import annotations

from collections.abc import Callable

from stratagem_proto.v1.replication_pb2 import STANDING_PRIMARY
from tests.simulation.replicas.arbiter import Register
from tests.simulation.replicas.replica import SimulatedReplica
from tests.simulation.world import World


class Acknowledgements:
    """Checks that one replica at a time answers the clients of a task.

    Args:
        world: The run that it is part of.
        register: The views of the task.
        other_of: Returns the other replica of the task.
    """

    def __init__(
        self,
        world: World,
        register: Register,
        other_of: Callable[[SimulatedReplica], SimulatedReplica],
    ) -> None:
        self._world, self._register, self._other_of = world, register, other_of
        # The latest epoch in which anybody has answered, who it was, and since when.
        self._epoch, self._instance, self._since = 0, b"", 0.0

    def note(self, replica: SimulatedReplica, method: str, allowed: float) -> None:
        """Check an answer.

        Args:
            replica: Who has given it.
            method: To which request.
            allowed: When it was allowed.
        """
        report = replica.report()
        if report is None:
            return
        epoch, instance = report.view.epoch, report.replica.instance
        what = f"{replica.name} ({instance.hex()[:4]}) answers {method} in epoch {epoch}"
        self._check_view(epoch, instance, what)
        if report.standing == STANDING_PRIMARY:
            self._check_alone(replica, what)
        if instance == self._instance:
            self._epoch = max(epoch, self._epoch)
        elif epoch > self._epoch:
            self._epoch, self._instance, self._since = epoch, instance, allowed
        else:
            self._world.require(
                allowed < self._since,
                f"{what}, though {self._instance.hex()[:4]} answers in {self._epoch} "
                f"since {self._since:.4f}",
            )

    def _check_view(self, epoch: int, instance: bytes, what: str) -> None:
        history = self._register.history
        view = history[epoch - 1] if 0 < epoch <= len(history) else None
        self._world.require(
            view is not None and view.primary.instance == instance,
            f"{what}, of which another one is the primary",
        )

    def _check_alone(self, replica: SimulatedReplica, what: str) -> None:
        """Check that clients of the other replica would get no answer meanwhile."""
        may_both = self._other_of(replica).standing == STANDING_PRIMARY
        self._world.require(not may_both, f"{what}, while the other one may answer, too")
