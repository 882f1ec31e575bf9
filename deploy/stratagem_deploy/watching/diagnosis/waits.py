"""Who waits for whom, and which functions do not end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stratagem_deploy.watching.amounts import mean, span
from stratagem_deploy.watching.asking import ServerAnswer, statuses
from stratagem_deploy.watching.diagnosis.clients import Client, clients, task_name
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_proto.v1.waits_pb2 import Waiter


@dataclass
class _Stall:
    """Requests that wait for the same thing of the same client."""

    culprit: str
    missing: str
    servers: set[str] = field(default_factory=set)
    subjects: set[str] = field(default_factory=set)
    waiters: set[str] = field(default_factory=set)
    seconds: float = 0.0


def stalled(
    answers: Sequence[ServerAnswer], patience: float, excused: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield for whom others wait, but for those who wait themselves for somebody else.

    Args:
        answers: What servers say.
        patience: Waits of fewer seconds are usual.
        excused: Clients that cannot help it, which another finding tells of.
    """
    waits = [*all_waits(answers)]
    stalls = _grouped(waits, patience)
    waiting = {task_name(wait.client) for _, wait in waits}.union(excused)
    roots = [stall for stall in stalls if stall.culprit not in waiting]
    known = clients(answers)
    # Those who wait for each other in a circle are all told.
    for stall in roots or [stall for stall in stalls if stall.culprit not in excused]:
        yield _told(stall, known.get(stall.culprit))


def all_waits(answers: Iterable[ServerAnswer]) -> Iterator[tuple[str, Waiter]]:
    """Yield who waits for whom and on which server; "" for a wait that only its client knows of."""
    told = set[tuple[str, str]]()
    for server, status in statuses(answers):
        yield from ((server, wait) for wait in status.parameter_server.waiters)
        for session in status.sessions:
            for wait in session.waits:
                # A client tells all servers.
                if (wait.client, wait.subject) not in told:
                    told.add((wait.client, wait.subject))
                    yield "", wait


def _grouped(waits: Iterable[tuple[str, Waiter]], patience: float) -> list[_Stall]:
    stalls: dict[tuple[str, str], _Stall] = {}
    for server, wait in waits:
        for awaited in wait.awaited if wait.seconds >= patience else ():
            culprit = task_name(awaited.client)
            if culprit == task_name(wait.client):
                continue
            key = culprit, awaited.missing
            stall = stalls.setdefault(key, _Stall(culprit, awaited.missing))
            stall.servers.add(server)
            stall.subjects.add(wait.subject)
            stall.waiters.add(task_name(wait.client))
            stall.seconds = max(stall.seconds, wait.seconds)
    return sorted(stalls.values(), key=lambda stall: -stall.seconds)


def _told(stall: _Stall, client: Client | None) -> Finding:
    who, verb = ", ".join(sorted(stall.waiters)), "wait" if len(stall.waiters) > 1 else "waits"
    seen = client.seen if client else "no server has a session of it"
    return Finding(
        f"{', '.join(sorted(stall.subjects))}: {who} {verb} {span(stall.seconds)} for the "
        f"{stall.missing} of {stall.culprit}{_on(stall.servers)}; {seen}",
        _remedy(client),
        stalls=True,
        culprits=(stall.culprit,),
    )


def _on(servers: Collection[str]) -> str:
    known = sorted(filter(None, servers))
    return f" on {', '.join(known)}" if known else ""


def _remedy(client: Client | None) -> str:
    if client is None:
        return "start that task; if it has ended for good, start the others with fewer workers"
    if client.is_silent:
        return (
            "look whether its process is stopped, its machine overloaded or its network cut; the "
            "others hear of its end when its lease runs out"
        )
    if client.doing:
        return "look at that line of its program: what it does there takes long or never ends"
    return "it makes requests and does not come so far: look what its program does otherwise"


def endless(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield the functions that run for much longer than others of their worker did."""
    for server, status in statuses(answers):
        worker = status.worker_server
        if not worker.HasField("current"):
            continue
        usual = mean(worker.seconds) or 0.0
        if worker.current.seconds > max(patience, 10 * usual):
            doing = worker.current.doing or "a place that cannot be seen"
            yield Finding(
                f"{server} has run function {worker.current.number} for "
                f"{span(worker.current.seconds)}, its functions take {span(usual)} on average; it "
                f"is at {doing}",
                "look at that line: it may wait for data, for a lock, or never end",
                stalls=bool(worker.queued),
                culprits=(server,),
            )
