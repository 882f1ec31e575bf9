"""What hosts are told of the strategy that they carry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratagem._cluster.spec import Tasks
from stratagem._multi_worker.place import WorkerPlace
from stratagem._tpu.topology import Topology


@dataclass(frozen=True)
class HostPlan:
    """A strategy, as all its hosts know it.

    Attributes:
        topology: The hosts and their cores.
        steps_per_run: How many steps a loop is to have.
        cluster: The addresses of all tasks, by job.
        meeting_point: Where the hosts find each other, as "host:port"; "" for a host
            that is alone.
    """

    topology: Topology
    steps_per_run: int
    cluster: Mapping[str, Tasks]
    meeting_point: str

    def place_of(self, task: int) -> WorkerPlace:
        """Return the place of a host among those that step together."""
        used = self.topology.used_tasks
        names = tuple(f"/job:{self.topology.job}/replica:0/task:{one}" for one in used)
        return WorkerPlace(names, used.index(task), self.meeting_point)

    def devices_of(self, task: int) -> list[str]:
        """Return the full names of the cores that a host uses."""
        name = self.place_of(task).name
        return [f"{name}/device:{core}" for core in self.topology.used_cores]
