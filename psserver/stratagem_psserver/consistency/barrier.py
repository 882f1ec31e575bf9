"""Named barriers: tasks wait until a given number of them have come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.protocol import check_name
from stratagem_psserver.waiting import listed

# Passages that some tasks wait for, and passages that are remembered.
MAX_GATHERINGS = 10_000
MAX_PASSED = 100_000


@dataclass
class _Gathering:
    """The next passage of a barrier.

    Attributes:
        num_tasks: How many tasks must come.
        arrived: Session and generation of those that have, by task.
    """

    num_tasks: int
    arrived: dict[str, tuple[bytes, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Passage:
    """How far a session has come at a barrier.

    Attributes:
        generation: How often it had passed before.
        number: How often those had who passed with it and have been there longest.
    """

    generation: int
    number: int


class Barriers:
    """The barriers of a server.

    Call `arrive` for each request, then look at `is_passed`. To arrive again, after a reply was
    lost, changes nothing. As nobody passes without all others, those who wait at a barrier wait for
    the same passage, however often each has passed before: a program that is started again alone
    meets the others where they wait. Where none of them waits it goes through the passages that are
    behind them all, since they will not come there again.
    """

    def __init__(self) -> None:
        self._gatherings: dict[str, _Gathering] = {}
        # The latest passage of each session, by barrier.
        self._passed: OrderedDict[tuple[str, bytes], _Passage] = OrderedDict()
        # The sessions in which tasks came last, while they are open.
        self._sessions: dict[str, bytes] = {}
        # The same as of a checkpoint: they count once they are opened again.
        self._awaited: dict[bytes, str] = {}

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
        gathering = self._gathering(name, num_tasks)
        if gathering.num_tasks != num_tasks:
            raise InvalidArgumentError(
                f"{task} waits at barrier {name!r} for {num_tasks} tasks, "
                f"{listed(list(gathering.arrived))} for {gathering.num_tasks}; run the "
                "same program on all"
            )
        gathering.arrived[task] = session_id, generation
        self._sessions[task] = session_id
        if len(gathering.arrived) == num_tasks or self._is_behind(name, task):
            del self._gatherings[name]
            self._let_pass(name, gathering)

    def _gathering(self, name: str, num_tasks: int) -> _Gathering:
        gathering = self._gatherings.get(name)
        if gathering is None:
            if len(self._gatherings) >= MAX_GATHERINGS:
                raise ResourceExhaustedError(
                    f"tasks wait at {MAX_GATHERINGS} barriers of this server, which is "
                    "the most; wait at one barrier at a time"
                )
            gathering = _Gathering(num_tasks)
            self._gatherings[name] = gathering
        return gathering

    def _is_behind(self, name: str, task: str) -> bool:
        """Whether a task waits alone where all others have been."""
        gathering = self._gatherings[name]
        number = self._number(name, *gathering.arrived[task])
        others = (one for key, one in self._sessions.items() if key != task)
        passages = (self._passed.get((name, one)) for one in others)
        ahead = sum(one is not None and one.number >= number for one in passages)
        return len(gathering.arrived) == 1 and ahead >= gathering.num_tasks - 1

    def _number(self, name: str, session_id: bytes, generation: int) -> int:
        last = self._passed.get((name, session_id), _Passage(0, 0))
        return generation + last.number - last.generation

    def _let_pass(self, name: str, gathering: _Gathering) -> None:
        arrivals = gathering.arrived.values()
        number = max(self._number(name, *arrival) for arrival in arrivals)
        for session_id, generation in arrivals:
            self._passed[name, session_id] = _Passage(generation, number)
            self._passed.move_to_end((name, session_id))
        # A program may give each passage a name of its own.
        while len(self._passed) > MAX_PASSED:
            self._passed.popitem(last=False)

    def is_passed(self, name: str, generation: int, session_id: bytes) -> bool | None:
        """True once the passage of that session is complete, else None."""
        last = self._passed.get((name, session_id))
        return (last is not None and last.generation >= generation) or None

    def session_opened(self, session_id: bytes) -> None:
        """Takes note of a session, which may be one that was known before."""
        task = self._awaited.pop(session_id, None)
        if task is not None:
            self._sessions.setdefault(task, session_id)

    def facts(self, sessions: Iterable[bytes]) -> dict[str, Any]:
        """What some sessions have passed, for JSON."""
        known = {*sessions}
        return {
            "passed": [
                [name, session_id.hex(), one.generation, one.number]
                for (name, session_id), one in self._passed.items()
                if session_id in known
            ],
            "tasks": {task: one.hex() for task, one in self._sessions.items()},
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Goes on from the facts of a checkpoint."""
        for name, session, generation, number in facts.get("passed", ()):
            key = name, bytes.fromhex(session)
            self._passed[key] = _Passage(generation, number)
        tasks = facts.get("tasks", {})
        self._awaited = {bytes.fromhex(one): task for task, one in tasks.items()}

    def arrived(self, name: str) -> list[str]:
        """The tasks that wait."""
        gathering = self._gatherings.get(name)
        return list(gathering.arrived) if gathering else []

    def session_ended(self, session_id: bytes) -> None:
        """Takes back where a session waits. What it has passed stays passed."""
        for task in [key for key, one in self._sessions.items() if one == session_id]:
            del self._sessions[task]
        for name, gathering in list(self._gatherings.items()):
            gathering.arrived = {
                task: arrival
                for task, arrival in gathering.arrived.items()
                if arrival[0] != session_id
            }
            if not gathering.arrived:
                del self._gatherings[name]
