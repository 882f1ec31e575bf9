"""The clients of a cluster: which ones are silent, cut off or gone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stratagem_deploy.watching.amounts import span
from stratagem_deploy.watching.asking import ServerAnswer, statuses
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_proto.v1.session_pb2 import AwaitedAnswer, Task
from stratagem_proto.v1.status_pb2 import GetStatusResponse, SessionStatus

_TASK = re.compile(r"/job:(\w+)/task:(\d+)")

# A client sends a heartbeat each three seconds.
_SILENT_SECONDS = 5.0

# What a large request may take that has just been answered.
_USUAL_SECONDS = 2.0


@dataclass
class Client:
    """A client, by what all servers say of it.

    Attributes:
        silences: Seconds since each server last heard of it.
        idle: Seconds since its program last made a request of a server.
        doing: Where its program was seen since.
        is_held: Whether a server makes it wait for others.
        released: Seconds since a server last let it go on that had made it wait.
        awaited: The answers that it said last it waits for, by server.
    """

    silences: dict[str, float] = field(default_factory=dict)
    idle: float = math.inf
    doing: str = ""
    is_held: bool = False
    released: float = math.inf
    awaited: dict[str, AwaitedAnswer] = field(default_factory=dict)

    @property
    def silent(self) -> float:
        """Seconds since any server last heard of it."""
        return min(self.silences.values())

    @property
    def is_silent(self) -> bool:
        """Whether no server hears of it."""
        return self.silent > _SILENT_SECONDS

    @property
    def deaf(self) -> list[str]:
        """The servers that do not hear of it, although others do."""
        if self.is_silent:
            return []
        return [server for server, seconds in self.silences.items() if seconds > _SILENT_SECONDS]

    def unanswered(
        self, answering: Mapping[str, GetStatusResponse], patience: float
    ) -> Iterator[tuple[str, AwaitedAnswer]]:
        """Yield the servers that have no request of those whose answers it waits for.

        Args:
            answering: What the servers say.
            patience: Waits of fewer seconds are usual.
        """
        # What its last heartbeat said may be over.
        if self.is_silent or self.deaf or self.is_held or self.released < _SILENT_SECONDS:
            return
        for server, answer in self.awaited.items():
            status, is_long = answering.get(server), answer.seconds >= max(patience, _USUAL_SECONDS)
            if status is not None and is_long and not _works_on(status, answer.method):
                yield server, answer

    @property
    def seen(self) -> str:
        """Return what was last heard of it, as a clause."""
        words = f"it is silent for {span(self.silent)}" if self.is_silent else "it is there"
        if self.idle > self.silent + 1:
            words += f", but has made no request for {span(self.idle)}"
        return words + (f", last seen at {self.doing}" if self.doing else "")


def _works_on(status: GetStatusResponse, method: str) -> bool:
    """Return whether a server may be working on a request that it does not hold for others."""
    # UpdateNonSlot counts as Update.
    name = method.removesuffix("NonSlot")
    under_way = sum(one.in_progress for one in status.methods if one.method == name)
    # Reads that wait for a step are told with their clients.
    held = [wait for wait in status.parameter_server.waiters if wait.reason == "step"]
    return under_way > (len(held) if name == "Read" else 0)


def clients(answers: Sequence[ServerAnswer]) -> Mapping[str, Client]:
    """Return all clients that have a session, by name."""
    found: dict[str, Client] = {}
    for server, status in statuses(answers):
        for session in status.sessions:
            known = found.setdefault(session_name(session), Client())
            earlier = known.silences.get(server, math.inf)
            known.silences[server] = min(earlier, session.silent_seconds)
            if session.HasField("released_seconds"):
                known.released = min(known.released, session.released_seconds)
            if session.idle_seconds < known.idle:
                known.idle, known.doing = session.idle_seconds, session.doing
                known.awaited = {_label(each.server): each for each in session.awaited}
        for wait in status.parameter_server.waiters:
            if client := found.get(task_name(wait.client)):
                client.is_held = True
    return found


def task_name(text: str) -> str:
    """Return a text of a server with its tasks as commands name them, as in "worker:0"."""
    return _TASK.sub(r"\1:\2", text)


def session_name(session: SessionStatus) -> str:
    """Return a client as commands name it."""
    return _label(session.task) if session.task.job else f"session {session.digest}"


def _label(task: Task) -> str:
    return f"{task.job}:{task.index}"


def cut_off(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield the clients that some servers do not hear, or that do not hear a server."""
    answering = dict(statuses(answers))
    for name, client in clients(answers).items():
        for server in client.deaf:
            silence = span(client.silences[server])
            words = f"{server} has heard nothing of {name} for {silence}, but others have"
            yield _cut(words, name, server)
        for server, answer in client.unanswered(answering, patience):
            waits = f"{name} waits {span(answer.seconds)} for {server} to answer {answer.method}"
            yield _cut(f"{waits}, which {server} does not work on", name, server)


def _cut(what: str, name: str, server: str) -> Finding:
    return Finding(
        what,
        f"look at the network between {name} and {server}, in both directions",
        stalls=True,
        culprits=(name, server),
    )


def silent(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the clients that no server hears of."""
    for name, client in clients(answers).items():
        last = f", last seen at {client.doing}" if client.doing else ""
        if client.is_silent:
            yield Finding(
                f"{name} is silent for {span(client.silent)}{last}",
                "look whether its process is stopped or its network cut",
                culprits=(name,),
            )


def lost(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the clients that ended without closing their sessions and did not come back."""
    found = {
        _label(loss.task): loss
        for _, status in statuses(answers)
        for loss in sorted(status.lost, key=lambda each: -each.seconds)
    }
    present = clients(answers)
    for name, loss in found.items():
        if name not in present:
            last = f", last seen at {loss.doing}" if loss.doing else ""
            yield Finding(
                f"{name} is gone for {span(loss.seconds)}: {loss.why}{last}",
                "look at the end of its log and start it again; if it has ended for good, the "
                "others can go on where they do not need it",
                culprits=(name,),
            )
