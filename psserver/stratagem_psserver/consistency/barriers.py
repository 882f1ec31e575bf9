"""Where workers meet: named barriers, and inputs that all of them have to read in one order."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.input_order import MAX_REPORTED, BatchRead, different_inputs
from stratagem_proto.protocol import check_name
from stratagem_proto.v1.consistency_pb2 import InputDigest
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.waiting import AwaitedClient, listed
from stratagem_rpc.shares import is_used_up

# The most passages that tasks wait for, and the most that are remembered.
MAX_GATHERINGS = 10_000
MAX_PASSED = 100_000


@dataclass
class _Gathering:
    """The next passage of a barrier.

    Attributes:
        num_tasks: The number of tasks that must arrive.
        arrived: The session and the generation of each task that has arrived.
    """

    num_tasks: int
    arrived: dict[str, tuple[bytes, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Passage:
    """The latest passage of a session through a barrier.

    Attributes:
        generation: How often the session's program had passed the barrier before.
        number: The same of the task that has passed it most often, among those that passed
            together. It numbers the passages of the barrier.
    """

    generation: int
    number: int


class Barriers:
    """The barriers of a server.

    Call `arrive` for each request, then poll `is_passed`. A request may be repeated when its reply
    was lost.

    No task passes without all others, so all tasks that wait at a barrier wait for the same
    passage, however often each program has passed it before: a program that was started again
    alone meets the others where they wait. If none of them waits, it passes alone through the
    passages that all others have passed, since they will not arrive there again.
    """

    def __init__(self) -> None:
        self._gatherings: dict[str, _Gathering] = {}
        # The latest passage of each session, by barrier.
        self._passed: OrderedDict[tuple[str, bytes], _Passage] = OrderedDict()
        # The open session by which each task arrived last.
        self._sessions: dict[str, bytes] = {}
        # Tasks by session, from a checkpoint; a session counts once it is opened again.
        self._awaited: dict[bytes, str] = {}

    def arrive(
        self, name: str, generation: int, num_tasks: int, task: str, session_id: bytes
    ) -> Collection[bytes]:
        """Note that a task has arrived; the last task opens the barrier.

        Args:
            name: The barrier.
            generation: How often the task's program has passed the barrier before.
            num_tasks: The number of tasks that must arrive.
            task: The task that arrives. A new session of a task replaces its earlier one.
            session_id: The session of the task.

        Returns:
            The sessions that pass now; none if the task has to wait, or has passed before.

        Raises:
            InvalidArgumentError: Another task waits for another number of tasks.
            ResourceExhaustedError: The task waits at too many barriers.
        """
        check_name(name, "barrier")
        if num_tasks < 1:
            raise InvalidArgumentError(f"barrier {name!r} must wait for 1 task or more")
        if self.is_passed(name, generation, session_id):
            return ()
        gathering = self._gathering(name, num_tasks, task)
        if gathering.num_tasks != num_tasks:
            raise InvalidArgumentError(
                f"{task} waits at barrier {name!r} for {num_tasks} tasks, "
                f"{listed(list(gathering.arrived))} for {gathering.num_tasks}; run the "
                "same program on all"
            )
        gathering.arrived[task] = session_id, generation
        self._sessions[task] = session_id
        if len(gathering.arrived) != num_tasks and not self._is_behind(name, task):
            return ()
        del self._gatherings[name]
        arrivals = gathering.arrived.values()
        number = max(self._number(name, *arrival) for arrival in arrivals)
        # A backup may know of arrivals in another order, when they were repeated in a new view.
        for arrived, before in sorted(arrivals):
            self._passed[name, arrived] = _Passage(before, number)
            self._passed.move_to_end((name, arrived))
        # A program may give each passage a name of its own.
        while len(self._passed) > MAX_PASSED:
            self._passed.popitem(last=False)
        return [arrived for arrived, _ in arrivals]

    def _gathering(self, name: str, num_tasks: int, task: str) -> _Gathering:
        gathering = self._gatherings.get(name)
        if gathering is None:
            if is_used_up(MAX_GATHERINGS, len(self._gatherings), partial(self._places_of, task)):
                raise ResourceExhaustedError(
                    f"{task} waits at {self._places_of(task)} barriers of this server, which is "
                    f"its share: three quarters of what others leave of {MAX_GATHERINGS}; wait at "
                    "one barrier at a time"
                )
            gathering = _Gathering(num_tasks)
            self._gatherings[name] = gathering
        return gathering

    def _places_of(self, task: str) -> int:
        return sum(task in one.arrived for one in self._gatherings.values())

    def _is_behind(self, name: str, task: str) -> bool:
        """Return whether a task waits alone for a passage that all others have passed."""
        gathering = self._gatherings[name]
        number = self._number(name, *gathering.arrived[task])
        others = (one for key, one in self._sessions.items() if key != task)
        passages = (self._passed.get((name, one)) for one in others)
        ahead = sum(one is not None and one.number >= number for one in passages)
        return len(gathering.arrived) == 1 and ahead >= gathering.num_tasks - 1

    def _number(self, name: str, session_id: bytes, generation: int) -> int:
        last = self._passed.get((name, session_id), _Passage(0, 0))
        return generation + last.number - last.generation

    def is_passed(self, name: str, generation: int, session_id: bytes) -> bool | None:
        """Return True once that session has passed, else None."""
        last = self._passed.get((name, session_id))
        return (last is not None and last.generation >= generation) or None

    def session_opened(self, session_id: bytes) -> None:
        """Note that a session is open, which may be one of a checkpoint."""
        task = self._awaited.pop(session_id, None)
        if task is not None:
            self._sessions.setdefault(task, session_id)

    def facts(self, sessions: Iterable[bytes]) -> dict[str, Any]:
        """Return what some sessions have passed, as JSON."""
        known = {*sessions}
        return {
            "passed": [
                [name, session_id.hex(), one.generation, one.number]
                for (name, session_id), one in self._passed.items()
                if session_id in known
            ],
            "tasks": {task: one.hex() for task, one in self._sessions.items()},
            "gatherings": {
                name: [
                    one.num_tasks,
                    {task: [id_.hex(), number] for task, (id_, number) in one.arrived.items()},
                ]
                for name, one in self._gatherings.items()
            },
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore the facts of a checkpoint."""
        for name, session, generation, number in facts.get("passed", ()):
            key = name, bytes.fromhex(session)
            self._passed[key] = _Passage(generation, number)
        tasks = facts.get("tasks", {})
        self._awaited = {bytes.fromhex(one): task for task, one in tasks.items()}

    def restore_gatherings(self, facts: Mapping[str, Any]) -> None:
        """Restore who waits, where the sessions of those who wait go on."""
        for name, (num_tasks, arrived) in facts["gatherings"].items():
            arrivals = {
                task: (bytes.fromhex(session), generation)
                for task, (session, generation) in arrived.items()
            }
            self._gatherings[name] = _Gathering(num_tasks, arrivals)

    def waiting(self) -> dict[str, str]:
        """Return the tasks that wait, and at which barrier each."""
        return {task: name for name, one in self._gatherings.items() for task in one.arrived}

    def arrived(self, name: str) -> list[str]:
        gathering = self._gatherings.get(name)
        return list(gathering.arrived) if gathering else []

    def awaited(self, name: str, clients: Collection[str]) -> list[AwaitedClient]:
        """Return the tasks that have not arrived yet.

        Args:
            name: The barrier.
            clients: All tasks that have a session.

        Returns:
            The tasks with a session that are not there, and one entry for all tasks without one.
        """
        gathering = self._gatherings.get(name)
        if gathering is None:
            return []
        missing = gathering.num_tasks - len(gathering.arrived)
        here = [client for client in clients if client not in gathering.arrived]
        absent = missing - len(here)
        others = [f"{absent} task{'s' * (absent > 1)} without a session"] if absent > 0 else []
        return [AwaitedClient(client, "arrival") for client in (*here, *others)]

    def session_ended(self, session_id: bytes) -> None:
        """Withdraw a session from where it waits; what it has passed stays recorded."""
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


# Workers that step together are at most a step apart. Those that only read may be a pass apart.
MAX_REMEMBERED = 16_384


class _Place(NamedTuple):
    """A batch as those see it who began together.

    A worker that was started again counts its passes from 0 again, and so do its others when all
    were started again, so only sessions that are the n-th of their tasks are compared.
    """

    life: int
    dataset: int
    pass_number: int
    batch: int | None


class _Report(NamedTuple):
    digest: int
    task: str


class _Difference(NamedTuple):
    dataset: int
    message: str


class InputOrders:
    """Compares what workers report of the same batch.

    Whoever reports last finds the difference. All workers get it as an error, with what they report
    next and from what they wait for, until they report of a later dataset.
    """

    def __init__(self) -> None:
        self._reports: OrderedDict[_Place, _Report] = OrderedDict()
        self._lives: dict[bytes, int] = {}
        # How many sessions of each task have reported.
        self._sessions: Counter[str] = Counter()
        self._differences: dict[bytes, _Difference] = {}

    def report(self, session: Session, inputs: Sequence[InputDigest]) -> None:
        """Compare what a worker has read with what others have reported.

        Raises:
            InvalidArgumentError: Another worker has read something else; all requests that wait are
                to look at `require_alike`. Or there are too many entries.
        """
        if not inputs:
            return
        if len(inputs) > MAX_REPORTED:
            raise InvalidArgumentError(
                f"{session.label} reports {len(inputs)} batches at once; {MAX_REPORTED} are the "
                "most"
            )
        found = self._differences.get(session.id)
        if found is not None and max(one.dataset for one in inputs) > found.dataset:
            del self._differences[session.id]
        self.require_alike(session)
        for one in inputs:
            if one.first and session.id not in self._lives:
                self._lives[session.id] = self._sessions[session.label]
                self._sessions[session.label] += 1
            # After a restart of the server nobody knows when the others began.
            if (life := self._lives.get(session.id)) is not None:
                self._compare(session, life, one)

    def require_alike(self, session: Session) -> None:
        """Raise InvalidArgumentError if a worker has read something else than others."""
        if found := self._differences.get(session.id):
            raise InvalidArgumentError(found.message)

    def _compare(self, session: Session, life: int, one: InputDigest) -> None:
        batch = one.batch if one.HasField("batch") else None
        # Whoever passes over data more often still divides the same files.
        number = 0 if batch is None else getattr(one, "pass")
        read = BatchRead(one.dataset, number, batch, one.digest)
        place = _Place(life, *read[:3])
        known = self._reports.setdefault(place, _Report(one.digest, session.label))
        while len(self._reports) > MAX_REMEMBERED:
            self._reports.popitem(last=False)
        if known.digest == one.digest:
            return
        error = different_inputs(read, session.label, known.digest, known.task)
        found = _Difference(one.dataset, str(error))
        for id_, began in self._lives.items():
            if began == life:
                self._differences[id_] = found
        raise error

    def session_ended(self, session_id: bytes) -> None:
        """Forget a session, and all that was read once none is left."""
        self._differences.pop(session_id, None)
        if self._lives.pop(session_id, None) is not None and not self._lives:
            self._reports.clear()
            self._sessions.clear()
