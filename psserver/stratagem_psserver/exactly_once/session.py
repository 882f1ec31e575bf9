"""A client's session with this server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from stratagem_proto.protocol import PING_SECONDS
from stratagem_proto.v1.session_pb2 import AwaitedAnswer, Role, Scalar, StepPace, Task
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
