"""Named barriers: tasks wait until a given number of them have come."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import check_name


@dataclass
class _Gathering:
    """One passage of one barrier, not complete yet: sessions by task."""

    num_tasks: int
    arrived: dict[str, bytes] = field(default_factory=dict)


@dataclass
class _Barrier:
    gatherings: dict[int, _Gathering] = field(default_factory=dict)
    passed: dict[bytes, int] = field(default_factory=dict)


class Barriers:
    """The barriers of a server.

    Call `arrive` for each request, then look at `is_passed`. To arrive again, after a
    reply was lost, changes nothing.
    """

    def __init__(self) -> None:
        self._barriers: dict[str, _Barrier] = {}

    def arrive(
        self, name: str, generation: int, num_tasks: int, task: str, session_id: bytes
    ) -> None:
        """Counts a task in; the last one opens the barrier.

        Args:
            name: Of the barrier.
            generation: How often this task's program has passed it before.
            num_tasks: How many tasks must come.
            task: The one that comes. A new session of a task takes its place.
            session_id: Its session.

        Raises:
            InvalidArgumentError: Another task waits for another number of tasks.
        """
        check_name(name, "barrier")
        if num_tasks < 1:
            raise InvalidArgumentError(f"barrier {name!r} must wait for 1 task or more")
        if self.is_passed(name, generation, session_id):
            return
        barrier = self._barriers.setdefault(name, _Barrier())
        gathering = barrier.gatherings.setdefault(generation, _Gathering(num_tasks))
        if gathering.num_tasks != num_tasks:
            raise InvalidArgumentError(
                f"{task} waits at barrier {name!r} for {num_tasks} tasks, "
                f"{', '.join(gathering.arrived)} for {gathering.num_tasks}; run the "
                "same program on all"
            )
        gathering.arrived[task] = session_id
        if len(gathering.arrived) == num_tasks:
            del barrier.gatherings[generation]
            barrier.passed |= dict.fromkeys(gathering.arrived.values(), generation)

    def is_passed(self, name: str, generation: int, session_id: bytes) -> bool | None:
        """True once the passage of that session is complete, else None."""
        barrier = self._barriers.get(name)
        if barrier and barrier.passed.get(session_id, -1) >= generation:
            return True
        return None

    def arrived(self, name: str, generation: int) -> list[str]:
        """The tasks that wait."""
        barrier = self._barriers.get(name, _Barrier())
        gathering = barrier.gatherings.get(generation)
        return list(gathering.arrived) if gathering else []

    def session_ended(self, session_id: bytes) -> None:
        """Takes back where a session waits. What it has passed stays passed."""
        for barrier in self._barriers.values():
            for generation, gathering in list(barrier.gatherings.items()):
                gathering.arrived = {
                    task: session
                    for task, session in gathering.arrived.items()
                    if session != session_id
                }
                if not gathering.arrived:
                    del barrier.gatherings[generation]
