"""What the clients of a simulation do, and how it is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from tests.simulation.cluster import Cluster
from tests.simulation.world import STORMS, World


class Program(ABC):
    """The program of one run.

    Attributes:
        num_servers: How many servers it needs.
        storms: Which storms it is built for.
    """

    num_servers: ClassVar[int] = 2
    storms: tuple[str, ...] = STORMS

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.chance

    @abstractmethod
    async def prepare(self, cluster: Cluster) -> None:
        """Create what all processes need, before anything goes wrong."""

    @abstractmethod
    async def run(self, cluster: Cluster) -> None:
        """Have processes do what they are to do, whatever goes wrong meanwhile."""

    @abstractmethod
    async def judge(self, cluster: Cluster) -> None:
        """Compare what the servers have in the end with what they answered."""
