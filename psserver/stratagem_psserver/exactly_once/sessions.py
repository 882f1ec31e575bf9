"""A client's session, and which processes and programs may act. This module is pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from stratagem_proto.errors import SupersededError
from stratagem_proto.protocol import PING_SECONDS
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_WORKER,
    AwaitedAnswer,
    Role,
    Scalar,
    StepPace,
    Task,
)
from stratagem_proto.v1.succession_pb2 import Incumbent
from stratagem_proto.v1.waits_pb2 import Waiter
from stratagem_psserver.exactly_once.numbering import Numbering


class SessionFacts(Protocol):
    """What the client of a session says of itself, as in `OpenSessionRequest`."""

    @property
    def role(self) -> Role: ...
    @property
    def task(self) -> Task: ...
    @property
    def client(self) -> bytes: ...
    @property
    def program(self) -> bytes: ...
    @property
    def process(self) -> bytes: ...


@dataclass
class Session:
    """What a server knows of a client. Times are in seconds of a monotonic clock.

    Attributes:
        id: The name of the session, of which nobody learns the id that its client shows.
        role: What the client is to the cluster.
        task: The task of the client; without a job if it has none.
        client: Identifies the client across its sessions with several servers.
        program: The program that it belongs to, as in OpenSessionRequest.
        process: The process that it is in, as in OpenSessionRequest.
        expires: When its lease ends.
        heard: When the client was last heard of.
        requested: When its program last made a request. A heartbeat is none.
        doing: Where its program was afterwards, as its last heartbeat said.
        awaited: The answers that it waited for by then.
        waits: What it waited for of other tasks by then.
        pace: How fast it took its steps by then; None before it said so.
        scalars: What its program had logged by then.
        numbering: Which of its requests were applied.
        received: Bytes of tensors that it has sent.
        sent: Bytes of tensors in answers to it.
        release: The release of stratagem that it runs; "" where that is not known.
        opened: Its place in the order in which sessions were opened. To resume it changes nothing.
    """

    id: bytes
    role: Role
    task: Task
    client: bytes = b""
    program: bytes = b""
    process: bytes = b""
    expires: float = 0.0
    heard: float = 0.0
    requested: float = 0.0
    doing: str = ""
    awaited: Sequence[AwaitedAnswer] = ()
    waits: Sequence[Waiter] = ()
    pace: StepPace | None = None
    scalars: Sequence[Scalar] = ()
    numbering: Numbering = field(default_factory=Numbering)
    received: int = 0
    sent: int = 0
    release: str = ""
    opened: int = 0

    def __post_init__(self) -> None:
        self.client = self.client or self.id

    @cached_property
    def label(self) -> str:
        """The name of the client in messages, for instance "/job:worker/task:1"."""
        if self.task.job:
            return f"/job:{self.task.job}/task:{self.task.index}"
        return f"session {self.id.hex()[:8]}"

    def is_of(self, task: Task, process: bytes) -> bool:
        """Return whether its client is that task in that process."""
        return self.process == process and self.task == task

    def seen(self, now: float) -> str:
        """Return what was last heard of the client, as a clause for messages."""
        silent, idle = now - self.heard, now - self.requested
        words = f"silent for {silent:.1f} s" if silent > PING_SECONDS else "which is there"
        if idle > max(silent, 1.0):
            words += f", without a request for {idle:.1f} s"
        return words + (f", last seen at {self.doing}" if self.doing else "")


def session_of(said: SessionFacts, name: bytes) -> Session:
    """Return the session of that name whose client says this of itself."""
    return Session(name, said.role, said.task, said.client, said.program, said.process)


# Tasks whose processes are known: as many as there can be sessions.
_MOST_PRESENT = 65_536

# Former clients that are remembered. Those before have long been gone.
_MOST_FORMER_CLIENTS = 10_000

_Place: TypeAlias = tuple[str, int]


class Fence:
    """The present process of each task that changes variables, and the clients of former ones.

    A process that takes the place of another one reads how far that has come, and goes on from
    there. So nothing of the other may be applied any more by then, whether it has ended, or is cut
    off and does not know that it was replaced. The process counts that has come last. A program
    that waits to coordinate takes no place.
    """

    def __init__(self) -> None:
        self._present: OrderedDict[_Place, bytes] = OrderedDict()
        self._former: OrderedDict[bytes, None] = OrderedDict()

    def replaced_by(self, session: Session) -> bytes:
        """Return the process whose place that of a session takes; b"" if there is none."""
        if not _is_guarded(session):
            return b""
        present = self._present.get(_place(session.task), b"")
        return b"" if present == session.process else present

    def enter(self, session: Session, known: Iterable[Session]) -> None:
        """Let the process of a session act for its task, and no other one from now on.

        Args:
            session: One that is opened, and may be.
            known: All that are open or can be resumed.
        """
        if former := self.replaced_by(session):
            for one in known:
                if one.is_of(session.task, former):
                    self._former[one.client] = None
            while len(self._former) > _MOST_FORMER_CLIENTS:
                self._former.popitem(last=False)
        if _is_guarded(session):
            # It keeps the place in the order that replicas and images know.
            self._present[_place(session.task)] = session.process
            if len(self._present) > _MOST_PRESENT:
                self._present.popitem(last=False)

    def require(self, session: Session) -> None:
        """Check that the client of a session may ask for something.

        Raises:
            SupersededError: It is that of a former process.
        """
        if session.client in self._former:
            raise superseded(session)

    def facts(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "present": [[*place, process.hex()] for place, process in self._present.items()],
            "former": [client.hex() for client in self._former],
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore what `facts` returned."""
        self._present = OrderedDict(
            ((job, index), bytes.fromhex(process)) for job, index, process in facts["present"]
        )
        self._former = OrderedDict.fromkeys(map(bytes.fromhex, facts["former"]))


def superseded(session: Session) -> SupersededError:
    """Return the error of a process in whose place another one acts."""
    return SupersededError(
        f"another process has begun as {session.label} after this one, and has its place: what "
        "this one asks is not carried out any more. End it; if both are meant to run, give each "
        "a task of its own"
    )


def _is_guarded(session: Session) -> bool:
    changes = session.role in (ROLE_CHIEF, ROLE_WORKER)
    return bool(changes and session.task.job and session.process)


def _place(task: Task) -> _Place:
    return task.job, task.index


# Former programs that are remembered. Those before have long been gone.
_MOST_FORMER_PROGRAMS = 1_000


class Succession:
    """The program of several that coordinates a cluster, and its predecessors.

    Programs succeed each other, and each incumbent has a number. The first server lets one succeed
    the other; all servers are told, and refuse what comes of the former ones. So a program that was
    suspended, and does not know that another one goes on in its place, changes nothing.

    Attributes:
        incumbent: The last one, as in the message.
        session: The session by which it took the place here.
    """

    def __init__(self) -> None:
        self.incumbent = Incumbent()
        self.session = b""
        # The program of the last incumbent, also if it has given the place up.
        self._last = b""
        self._former: OrderedDict[bytes, None] = OrderedDict()

    def succeed(self, wanted: Incumbent, session: bytes) -> bool:
        """Let a program take the place, or give it up; return whether it has done so."""
        present = self.incumbent
        is_same = wanted.number == present.number and (
            wanted.program == present.program if wanted.program else session == self.session
        )
        if wanted.number <= present.number and not is_same:
            return False
        if program := wanted.program:
            if self._last not in (b"", program):
                self._former[self._last] = None
            self._former.pop(program, None)
            self._last = program
            if len(self._former) > _MOST_FORMER_PROGRAMS:
                self._former.popitem(last=False)
        self.incumbent, self.session = Incumbent(), session
        self.incumbent.CopyFrom(wanted)
        return True

    def refuses(self, program: bytes) -> bool:
        """Return whether another program coordinates in the place of this one."""
        holder = self.incumbent.program
        return (bool(holder) and program != holder) or program in self._former

    def require(self, program: bytes) -> None:
        """Check that a program may ask for something; one without a name may.

        Raises:
            SupersededError: Another one coordinates.
        """
        if program and self.refuses(program):
            raise self.refusal()

    def refusal(self) -> SupersededError:
        """Return the error of a program that does not coordinate any more."""
        incumbent = self.incumbent
        return SupersededError(
            f"{incumbent.name} coordinates this cluster now, as number {incumbent.number}: "
            "nothing was heard of this program, or it has not waited for its turn. What it "
            "asks is not carried out any more. End it; when it is started again, let it wait "
            "by stratagem.coordinator.stand_by()"
        )

    def facts(self) -> dict[str, Any]:
        """Return everything as JSON."""
        incumbent = self.incumbent
        return {
            "number": incumbent.number,
            "program": incumbent.program.hex(),
            "name": incumbent.name,
            "finished": incumbent.finished,
            "session": self.session.hex(),
            "last": self._last.hex(),
            "former": [one.hex() for one in self._former],
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore what `facts` returned."""
        self.incumbent = Incumbent(
            number=facts["number"],
            program=bytes.fromhex(facts["program"]),
            name=facts["name"],
            finished=facts["finished"],
        )
        self.session, self._last = map(bytes.fromhex, (facts["session"], facts["last"]))
        self._former = OrderedDict.fromkeys(map(bytes.fromhex, facts["former"]))
