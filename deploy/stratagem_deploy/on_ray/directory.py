"""The directory of a cluster: the addresses of its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain

Task = tuple[str, int]
"""Job of a task, and its index in it."""

# A host that never exists (RFC 2606).
_NOWHERE = "not-started.invalid:0"


class Directory:
    """The addresses that tasks publish; an actor.

    Args:
        counts: The number of tasks by job.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self._addresses: dict[Task, str] = {}
        self._changed = asyncio.Condition()

    async def publish(self, job: str, index: int, address: str) -> None:
        """Set the address of a task that starts, or start again."""
        async with self._changed:
            self._addresses[job, index] = address
            self._changed.notify_all()

    async def forget(self, job: str) -> None:
        """Drop the addresses of a job, which has ended."""
        for index in range(self._counts[job]):
            self._addresses.pop((job, index), None)

    async def last(self, job: str, index: int) -> str:
        """Return the last address of a task; "" if it has not started before."""
        return self._addresses.get((job, index), "")

    async def addresses(self, jobs: Sequence[str], *, wait: bool) -> Mapping[str, Sequence[str]]:
        """Return the addresses of jobs, by job and index.

        A task that is being started again has its last one until it serves.

        Args:
            jobs: The jobs, of which some may have no tasks.
            wait: Whether to wait until all tasks have started. Otherwise those that have not get
                the address of a host that does not exist.
        """
        tasks = {
            job: [(job, index) for index in range(self._counts[job])]
            for job in jobs
            if self._counts.get(job)
        }
        every = {*chain.from_iterable(tasks.values())}
        async with self._changed:
            await self._changed.wait_for(lambda: not wait or self._addresses.keys() >= every)
        return {job: [self._addresses.get(task, _NOWHERE) for task in tasks[job]] for job in tasks}
