"""Who waits for whom."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stratagem_deploy.watching.amounts import span
from stratagem_deploy.watching.asking import ServerAnswer, statuses
from stratagem_deploy.watching.diagnosis.clients import Client, clients, task_name
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_proto.v1.waits_pb2 import Waiter

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


def stalled(
    answers: Sequence[ServerAnswer], patience: float, excused: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield for whom others wait, but for those who wait themselves for somebody else.

    Args:
        answers: What servers say.
        patience: Waits of fewer seconds are usual.
        excused: Clients that cannot help it, which another finding tells of.
    """
    waits = [each for each in all_waits(answers) if _holds_up(each[1], patience)]
    stalls = _grouped(waits, patience)
    waiting = {task_name(wait.client) for _, wait in waits}.union(excused)
    roots = [stall for stall in stalls if stall.culprit not in waiting]
    known, servers = clients(answers), dict(statuses(answers))
    if not roots and (circle := [one for one in stalls if one.culprit not in excused]):
        yield _told_together(circle)
    for stall in roots:
        if stall.culprit in servers and stall.reason == LOCK:
            yield _busy(stall)
        else:
            yield _told(stall, known.get(stall.culprit))


def _holds_up(wait: Waiter, patience: float) -> bool:
    """Return whether a client goes on with nothing, or with no step, while it waits."""
    # Functions and parts of checkpoints may take long, of which other findings tell. Requests for
    # one variable wait for each other all the time, for a moment each.
    return wait.reason != PART and (wait.reason != LOCK or wait.seconds >= patience)


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


def _told(stall: _Stall, client: Client | None) -> Finding:
    seen = client.seen if client else "no server has a session of it"
    return Finding(
        f"{_waiting(stall)} of {stall.culprit}{_on(stall.servers)}; {seen}",
        _remedy(client),
        stalls=True,
        culprits=(stall.culprit,),
    )


def _told_together(circle: Sequence[_Stall]) -> Finding:
    """Tell of clients that wait for each other, of which none is more to blame than the others."""
    culprits = tuple(sorted({stall.culprit for stall in circle}))
    waits = (f"{_waiting(stall)} of {stall.culprit}{_on(stall.servers)}" for stall in circle)
    return Finding(
        f"{' and '.join(culprits)} wait for each other, so that none goes on: {'; '.join(waits)}",
        "their programs have parted: see that all take as many steps, with sync, and pass the same "
        "barriers in the same order; often one has fewer batches. Then start all of them again",
        stalls=True,
        culprits=culprits,
    )


def _busy(stall: _Stall) -> Finding:
    """Tell of a server that holds a variable for others and does not come to an end."""
    return Finding(
        f"{_waiting(stall)} on {stall.culprit}, which holds it meanwhile",
        f"look at the machine of {stall.culprit}, whether it has processors and memory left, and "
        "how large the variable is (`stratagem variables`)",
        stalls=True,
        culprits=(stall.culprit,),
    )


def _waiting(stall: _Stall) -> str:
    who, verb = ", ".join(sorted(stall.waiters)), "wait" if len(stall.waiters) > 1 else "waits"
    subjects = ", ".join(sorted(stall.subjects))
    return f"{subjects}: {who} {verb} {span(stall.seconds)} for the {task_name(stall.missing)}"


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
