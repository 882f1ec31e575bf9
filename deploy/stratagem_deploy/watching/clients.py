"""The clients of a cluster: who is silent, cut off or gone, and who waits for whom. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stratagem_deploy.watching.asking import ServerAnswer, span, statuses
from stratagem_proto.v1.session_pb2 import AwaitedAnswer, Task
from stratagem_proto.v1.status_pb2 import GetStatusResponse, SessionStatus
from stratagem_proto.v1.waits_pb2 import Waiter


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        what: What it is, with the tasks that it concerns.
        remedy: What to do.
        stalls: Whether somebody waits because of it.
        culprits: The tasks that are to blame, for instance "worker:3".
    """

    what: str
    remedy: str
    stalls: bool = False
    culprits: Sequence[str] = ()

    def facts(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return asdict(self) | {"culprits": list(self.culprits)}


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
        cuts = [
            (server, f"{server} has heard nothing of {name} for {span(silence)}, but others have")
            for server, silence in client.silences.items()
            if server in client.deaf
        ]
        for server, answer in client.unanswered(answering, patience):
            waits = f"{name} waits {span(answer.seconds)} for {server} to answer {answer.method}"
            cuts.append((server, f"{waits}, which {server} does not work on"))
        for server, what in cuts:
            yield Finding(
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


# Reasons of waits, as of `WaitStatus` and `Waiter`.
LOCK, FUNCTION, PART = "lock", "function", "part"


@dataclass
class _Stall:
    """Requests that wait for the same thing of the same client."""

    culprit: str
    missing: str
    reason: str
    servers: set[str] = field(default_factory=set)
    subjects: set[str] = field(default_factory=set)
    waiters: set[str] = field(default_factory=set)
    seconds: float = 0.0

    @property
    def waiting(self) -> str:
        who, verb = ", ".join(sorted(self.waiters)), "wait" if len(self.waiters) > 1 else "waits"
        subjects = ", ".join(sorted(self.subjects))
        return f"{subjects}: {who} {verb} {span(self.seconds)} for the {task_name(self.missing)}"

    @property
    def of_culprit(self) -> str:
        where = ", ".join(sorted(filter(None, self.servers)))
        return f"{self.waiting} of {self.culprit}" + (f" on {where}" if where else "")


def stalled(
    answers: Sequence[ServerAnswer], patience: float, excused: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield for whom others wait, but for those who wait themselves for somebody else.

    Args:
        answers: What servers say.
        patience: Waits of fewer seconds are usual.
        excused: Clients that cannot help it, which another finding tells of.
    """
    # Functions and parts of checkpoints may take long, of which other findings tell. Requests for
    # one variable wait for each other all the time, for a moment each.
    waits = [
        (server, wait)
        for server, wait in all_waits(answers)
        if wait.reason != PART and (wait.reason != LOCK or wait.seconds >= patience)
    ]
    stalls = _grouped(waits, patience)
    waiting = {task_name(wait.client) for _, wait in waits}.union(excused)
    roots = [stall for stall in stalls if stall.culprit not in waiting]
    known, servers = clients(answers), dict(statuses(answers))
    if not roots and (circle := [one for one in stalls if one.culprit not in excused]):
        yield _held_up_by_each_other(circle)
    for stall in roots:
        if stall.culprit in servers and stall.reason == LOCK:
            yield _held_up_by_server(stall)
        else:
            yield _held_up_by_one(stall, known.get(stall.culprit))


def all_waits(answers: Iterable[ServerAnswer]) -> Iterator[tuple[str, Waiter]]:
    """Yield who waits for whom and on which server; "" for a wait that only its client knows of."""
    known = set[tuple[str, str]]()
    for server, status in statuses(answers):
        yield from ((server, wait) for wait in status.parameter_server.waiters)
        for session in status.sessions:
            for wait in session.waits:
                # A client tells all servers.
                if (wait.client, wait.subject) not in known:
                    known.add((wait.client, wait.subject))
                    yield "", wait


def _grouped(waits: Iterable[tuple[str, Waiter]], patience: float) -> list[_Stall]:
    stalls: dict[tuple[str, str], _Stall] = {}
    for server, wait in waits:
        is_usual = wait.seconds < patience or wait.reason == FUNCTION
        for awaited in () if is_usual else wait.awaited:
            culprit = task_name(awaited.client)
            if culprit == task_name(wait.client):
                continue
            key = culprit, awaited.missing
            stall = stalls.setdefault(key, _Stall(culprit, awaited.missing, wait.reason))
            stall.servers.add(server)
            stall.subjects.add(wait.subject)
            stall.waiters.add(task_name(wait.client))
            stall.seconds = max(stall.seconds, wait.seconds)
    return sorted(stalls.values(), key=lambda stall: -stall.seconds)


def _held_up_by_one(stall: _Stall, client: Client | None) -> Finding:
    seen = client.seen if client else "no server has a session of it"
    if client is None:
        remedy = "start that task; if it has ended for good, start the others with fewer workers"
    elif client.is_silent:
        remedy = (
            "look whether its process is stopped, its machine overloaded or its network cut; the "
            "others hear of its end when its lease runs out"
        )
    elif client.doing:
        remedy = "look at that line of its program: what it does there takes long or never ends"
    else:
        remedy = "it makes requests and does not come so far: look what its program does otherwise"
    return Finding(f"{stall.of_culprit}; {seen}", remedy, stalls=True, culprits=(stall.culprit,))


def _held_up_by_each_other(circle: Sequence[_Stall]) -> Finding:
    """Return what is wrong with clients of which none is more to blame than the others."""
    culprits = tuple(sorted({stall.culprit for stall in circle}))
    waits = "; ".join(stall.of_culprit for stall in circle)
    return Finding(
        f"{' and '.join(culprits)} wait for each other, so that none goes on: {waits}",
        "their programs have parted: see that all take as many steps, with sync, and pass the same "
        "barriers in the same order; often one has fewer batches. Then start all of them again",
        stalls=True,
        culprits=culprits,
    )


def _held_up_by_server(stall: _Stall) -> Finding:
    """Return what is wrong with one that holds a variable for others, and does not end."""
    return Finding(
        f"{stall.waiting} on {stall.culprit}, which holds it meanwhile",
        f"look at the machine of {stall.culprit}, whether it has processors and memory left, and "
        "how large the variable is (`stratagem variables`)",
        stalls=True,
        culprits=(stall.culprit,),
    )
