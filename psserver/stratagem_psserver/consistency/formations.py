"""Which workers all-reduce together: groups that form anew when one is lost, or comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.protocol import check_name
from stratagem_proto.v1.barrier_pb2 import BarrierResponse, GroupForming, GroupMember
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.waiting import AwaitedClient

MAX_GROUPS = 1_000
MAX_MEMBERS = 10_000
MAX_NOTE_BYTES = 4_096

IsHeard = Callable[[str], bool]
"""Says whether a process of a task seems to live."""


@dataclass(frozen=True)
class _Arrival:
    """How a task came to a generation.

    Attributes:
        session_id: Its session.
        note: What it has said.
        since: When.
        is_member: Whether this process was in the generation before.
    """

    session_id: bytes
    note: bytes
    since: float
    is_member: bool


@dataclass
class _Group:
    """A group of workers.

    Attributes:
        generation: How often it has been formed.
        members: By task, what each said when it came; of those that another run of the server has
            brought together, nothing is known.
        waiting: Those that have come to the next generation.
        num_tasks: How many the first generation waits for.
    """

    generation: int = 0
    members: dict[str, _Arrival | None] = field(default_factory=dict)
    waiting: dict[str, _Arrival] = field(default_factory=dict)
    num_tasks: int = 1


class Formations:
    """The groups of a server, which decides who is in which generation.

    A generation is formed of all that wait, once none of the one before is missing. A member is not
    waited for if its process is gone, nor for long once another member has come: they then cannot
    go on together. Where none is left, those who wait do so for as long for the rest.

    So there is never a second group of the same name: members of a generation all-reduce with all
    of it, or leave it and come here. Who is alone in a generation has to look before each step
    whether it is still the latest.
    """

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def join(
        self, name: str, forming: GroupForming, num_tasks: int, session: Session, now: float
    ) -> None:
        """Note that a task waits for a generation after the one that it was in.

        Raises:
            InvalidArgumentError: What it says is too long.
            ResourceExhaustedError: There are too many groups.
        """
        if len(forming.note) > MAX_NOTE_BYTES:
            raise InvalidArgumentError(
                f"what {session.label} says to the group {name!r} has {len(forming.note)} bytes; "
                f"{MAX_NOTE_BYTES} are the most"
            )
        group = self._known(name, forming)
        if self._is_in_later(group, forming, session):
            return
        group.num_tasks = max(num_tasks, 1)
        before = group.waiting.get(session.label)
        if before is None or before.session_id != session.id:
            is_member = 0 < forming.generation == group.generation
            group.waiting[session.label] = _Arrival(session.id, forming.note, now, is_member)

    def _known(self, name: str, forming: GroupForming) -> _Group:
        """Return a group, which is no older than what a task knows of it."""
        check_name(name, "group")
        if len(forming.members) > MAX_MEMBERS:
            raise InvalidArgumentError(f"a group has {MAX_MEMBERS} members at most")
        if name not in self._groups and len(self._groups) >= MAX_GROUPS:
            raise ResourceExhaustedError(
                f"there are {MAX_GROUPS} groups of workers on this server; use fewer optimizers"
            )
        group = self._groups.setdefault(name, _Group())
        if forming.generation > group.generation:
            group.generation = forming.generation
            group.members = dict.fromkeys(forming.members)
        return group

    @staticmethod
    def _is_in_later(group: _Group, forming: GroupForming, session: Session) -> bool:
        """Whether the generation is there already: the answer to the request was lost."""
        own = group.members.get(session.label)
        is_own = own is not None and own.session_id == session.id
        return is_own and group.generation > forming.generation

    def formed(
        self,
        name: str,
        forming: GroupForming,
        session: Session,
        is_heard: IsHeard,
        now: float,
    ) -> BarrierResponse | None:
        """Return the generation that a task is in; None if it is not formed yet."""
        group = self._groups[name]
        if self._is_in_later(group, forming, session):
            return _answer(group, is_heard)
        here = {task: one for task, one in group.waiting.items() if is_heard(task)}
        if session.label not in here or not self._is_whole(group, here, forming, is_heard, now):
            return None
        group.generation += 1
        group.members, group.waiting = dict(here), {}
        return _answer(group, is_heard)

    @staticmethod
    def _is_whole(
        group: _Group,
        here: dict[str, _Arrival],
        forming: GroupForming,
        is_heard: IsHeard,
        now: float,
    ) -> bool:
        if len(here) >= group.num_tasks or not group.generation:
            return len(here) >= group.num_tasks
        is_missing = any(map(is_heard, group.members.keys() - here.keys()))
        came = [one.since for one in here.values() if one.is_member]
        if came and not is_missing:
            return True
        if not came and is_missing:
            return False
        # Nobody is left of the generation before, and others may be about to come as well.
        return now - min(came or [one.since for one in here.values()]) >= forming.patience_seconds

    def look(self, name: str, forming: GroupForming, is_heard: IsHeard) -> BarrierResponse:
        """Return the latest generation."""
        return _answer(self._known(name, forming), is_heard)

    def awaited(self, name: str, is_heard: IsHeard) -> list[AwaitedClient]:
        """Return the tasks that those who wait need."""
        group = self._groups[name]
        if not group.generation:
            absent = group.num_tasks - len(group.waiting)
            return [AwaitedClient(f"{absent} more workers", "arrival")] if absent > 0 else []
        missing = group.members.keys() - group.waiting.keys()
        return [AwaitedClient(task, "arrival") for task in sorted(missing) if is_heard(task)]

    def session_ended(self, session_id: bytes) -> None:
        """Withdraw a session from where it waits."""
        for group in self._groups.values():
            group.waiting = {
                task: one for task, one in group.waiting.items() if one.session_id != session_id
            }


def _answer(group: _Group, is_heard: IsHeard) -> BarrierResponse:
    return BarrierResponse(
        generation=group.generation,
        members=[
            GroupMember(task=task, note=b"" if one is None else one.note)
            for task, one in group.members.items()
        ],
        is_awaited=any(map(is_heard, group.waiting)),
        has_lost=not all(map(is_heard, group.members)),
    )
