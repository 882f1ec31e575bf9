"""Named barriers: tasks wait until a given number of them have come."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.protocol import check_name
from stratagem_psserver.listing import listed

# Passages that some tasks wait for, and passages that are remembered.
MAX_GATHERINGS = 10_000
MAX_PASSED = 100_000


@dataclass
class _Gathering:
    """One passage of one barrier, not complete yet: sessions by task."""

    num_tasks: int
    arrived: dict[str, bytes] = field(default_factory=dict)


class Barriers:
    """The barriers of a server.

    Call `arrive` for each request, then look at `is_passed`. To arrive again, after a
    reply was lost, changes nothing.
    """

    def __init__(self) -> None:
        self._gatherings: dict[tuple[str, int], _Gathering] = {}
        # The latest generation that each session has passed, by barrier.
        self._passed: OrderedDict[tuple[str, bytes], int] = OrderedDict()

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
            ResourceExhaustedError: Tasks wait at too many barriers.
        """
        check_name(name, "barrier")
        if num_tasks < 1:
            raise InvalidArgumentError(f"barrier {name!r} must wait for 1 task or more")
        if self.is_passed(name, generation, session_id):
            return
        gathering = self._gathering(name, generation, num_tasks)
        if gathering.num_tasks != num_tasks:
            raise InvalidArgumentError(
                f"{task} waits at barrier {name!r} for {num_tasks} tasks, "
                f"{listed(list(gathering.arrived))} for {gathering.num_tasks}; run the "
                "same program on all"
            )
        gathering.arrived[task] = session_id
        if len(gathering.arrived) == num_tasks:
            del self._gatherings[name, generation]
            self._let_pass(name, generation, gathering)

    def _gathering(self, name: str, generation: int, num_tasks: int) -> _Gathering:
        gathering = self._gatherings.get((name, generation))
        if gathering is None:
            if len(self._gatherings) >= MAX_GATHERINGS:
                raise ResourceExhaustedError(
                    f"tasks wait at {MAX_GATHERINGS} barriers of this server, which is "
                    "the most; wait at one barrier at a time"
                )
            gathering = _Gathering(num_tasks)
            self._gatherings[name, generation] = gathering
        return gathering

    def _let_pass(self, name: str, generation: int, gathering: _Gathering) -> None:
        for session_id in gathering.arrived.values():
            self._passed[name, session_id] = generation
            self._passed.move_to_end((name, session_id))
        # A program may give each passage a name of its own.
        while len(self._passed) > MAX_PASSED:
            self._passed.popitem(last=False)

    def is_passed(self, name: str, generation: int, session_id: bytes) -> bool | None:
        """True once the passage of that session is complete, else None."""
        return self._passed.get((name, session_id), -1) >= generation or None

    def arrived(self, name: str, generation: int) -> list[str]:
        """The tasks that wait."""
        gathering = self._gatherings.get((name, generation))
        return list(gathering.arrived) if gathering else []

    def session_ended(self, session_id: bytes) -> None:
        """Takes back where a session waits. What it has passed stays passed."""
        for passage, gathering in list(self._gatherings.items()):
            gathering.arrived = {
                task: session
                for task, session in gathering.arrived.items()
                if session != session_id
            }
            if not gathering.arrived:
                del self._gatherings[passage]
