"""What is wrong with a cluster, by what its servers say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from stratagem_deploy.watching.amounts import amount, mean, span, total
from stratagem_deploy.watching.asking import ServerAnswer
from stratagem_proto.v1.status_pb2 import Budget, GetStatusResponse, SessionStatus, Waiter

# Of a budget in use; what comes next may be refused.
_NEARLY_FULL = 0.9

# Leases and deadlines are measured by each machine for itself: clocks matter to people who compare
# logs. A second is what NTP keeps by far.
_MOST_SKEW_SECONDS = 2.0

# Of a part of a checkpoint: any disk is faster, and smaller parts tell nothing.
_SLOW_BYTES_PER_SECOND, _TELLING_BYTES = 20e6, 10e6

# A server is slow that takes so many times as long as the others, over so many calls.
_SLOWER, _ENOUGH_CALLS = 3.0, 20


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


@dataclass
class _Client:
    """A client, by what all servers say of it.

    Attributes:
        silent: Seconds since a server last heard of it.
        idle: Seconds since its program last made a request of a server.
        doing: Where its program was seen since.
    """

    silent: float
    idle: float
    doing: str

    @property
    def seen(self) -> str:
        """Return what was last heard of it, as a clause."""
        words = f"it is silent for {span(self.silent)}" if self.silent > 5 else "it is there"
        if self.idle > self.silent + 1:
            words += f", but has made no request for {span(self.idle)}"
        return words + (f", last seen at {self.doing}" if self.doing else "")


@dataclass
class _Stall:
    """Requests that wait for the same thing of the same client."""

    culprit: str
    missing: str
    servers: set[str] = field(default_factory=set)
    subjects: set[str] = field(default_factory=set)
    waiters: set[str] = field(default_factory=set)
    seconds: float = 0.0


def findings(answers: Sequence[ServerAnswer], patience: float) -> list[Finding]:
    """Return what is wrong, those first for whom others wait.

    Args:
        answers: What servers say.
        patience: Waits of fewer seconds are usual.
    """
    found = [
        *_missed(answers),
        *_stalled(answers, patience),
        *_endless(answers, patience),
        *_silent(answers),
        *_full(answers),
        *_slow_disks(answers),
        *_slow_servers(answers),
        *_skewed(answers),
        *_different(answers),
    ]
    return sorted(found, key=lambda finding: not finding.stalls)


def _statuses(answers: Iterable[ServerAnswer]) -> Iterator[tuple[str, GetStatusResponse]]:
    return ((answer.label, answer.status) for answer in answers if answer.status)


def _missed(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    for answer in answers:
        if answer.is_missed:
            yield Finding(
                f"{answer.label} does not answer: {answer.problem}",
                "look at its log and its machine; a process that is stopped or a network that is "
                "cut looks the same. Started again with --restore it goes on from its checkpoint",
                stalls=True,
                culprits=(answer.label,),
            )


def _task(label: str) -> str:
    """Return a task as commands name it."""
    return label.removeprefix("/job:").replace("/task:", ":")


def _clients(answers: Sequence[ServerAnswer]) -> dict[str, _Client]:
    found: dict[str, _Client] = {}
    for _, status in _statuses(answers):
        for session in status.sessions:
            name = _name(session)
            known = found.setdefault(name, _Client(session.silent_seconds, 1e9, ""))
            known.silent = min(known.silent, session.silent_seconds)
            if session.idle_seconds < known.idle:
                known.idle, known.doing = session.idle_seconds, session.doing
    return found


def _name(session: SessionStatus) -> str:
    if session.task.job:
        return f"{session.task.job}:{session.task.index}"
    return f"session {session.session_id.hex()[:8]}"


def _stalled(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    """Yield for whom others wait, but for those who wait themselves for somebody else."""
    waits = [
        (server, wait)
        for server, status in _statuses(answers)
        for wait in status.parameter_server.waiters
    ]
    stalls = _grouped(waits, patience)
    waiting = {_task(wait.client) for _, wait in waits}
    roots = [stall for stall in stalls if stall.culprit not in waiting]
    clients = _clients(answers)
    # Those who wait for each other in a circle are all told.
    for stall in roots or stalls:
        yield _told(stall, clients.get(stall.culprit))


def _grouped(waits: Iterable[tuple[str, Waiter]], patience: float) -> list[_Stall]:
    stalls: dict[tuple[str, str], _Stall] = {}
    for server, wait in waits:
        for awaited in wait.awaited if wait.seconds >= patience else ():
            culprit = _task(awaited.client)
            if culprit == _task(wait.client):
                continue
            key = culprit, awaited.missing
            stall = stalls.setdefault(key, _Stall(culprit, awaited.missing))
            stall.servers.add(server)
            stall.subjects.add(wait.subject)
            stall.waiters.add(_task(wait.client))
            stall.seconds = max(stall.seconds, wait.seconds)
    return sorted(stalls.values(), key=lambda stall: -stall.seconds)


def _told(stall: _Stall, client: _Client | None) -> Finding:
    who, verb = ", ".join(sorted(stall.waiters)), "wait" if len(stall.waiters) > 1 else "waits"
    seen = client.seen if client else "no server has a session of it"
    return Finding(
        f"{', '.join(sorted(stall.subjects))}: {who} {verb} {span(stall.seconds)} for the "
        f"{stall.missing} of {stall.culprit} on {', '.join(sorted(stall.servers))}; {seen}",
        _remedy(client),
        stalls=True,
        culprits=(stall.culprit,),
    )


def _remedy(client: _Client | None) -> str:
    if client is None:
        return "start that task; if it has ended for good, start the others with fewer workers"
    if client.silent > 5:
        return (
            "look whether its process is stopped, its machine overloaded or its network cut; the "
            "others hear of its end when its lease runs out"
        )
    if client.doing:
        return "look at that line of its program: what it does there takes long or never ends"
    return "it makes requests and does not come so far: look what its program does otherwise"


def _endless(answers: Sequence[ServerAnswer], patience: float) -> Iterator[Finding]:
    for server, status in _statuses(answers):
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


def _silent(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    for name, client in _clients(answers).items():
        if client.silent > 5:
            last = f", last seen at {client.doing}" if client.doing else ""
            yield Finding(
                f"{name} is silent for {span(client.silent)}{last}",
                "look whether its process is stopped or its network cut",
                culprits=(name,),
            )


def _full(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    for server, status in _statuses(answers):
        mine = status.parameter_server
        budgets: tuple[tuple[Budget, str], ...] = (
            (mine.staged, "--staged-bytes"),
            (mine.room, "--variable-bytes"),
        )
        for budget, flag in budgets:
            if budget.limit and budget.used >= _NEARLY_FULL * budget.limit:
                yield Finding(
                    f"{server} uses {amount(budget.used)} of {amount(budget.limit)} ({flag})",
                    f"raise {flag}, or use more servers",
                    culprits=(server,),
                )


def _slow_disks(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    for server, status in _statuses(answers):
        saved = status.parameter_server.checkpoint
        if saved.failures:
            yield Finding(
                f"{server} could not write {saved.failures} parts of checkpoints",
                "see its log for the reason, most often a full disk or a folder of another user",
                culprits=(server,),
            )
        if saved.bytes > _TELLING_BYTES and saved.bytes < _SLOW_BYTES_PER_SECOND * saved.seconds:
            yield Finding(
                f"{server} took {span(saved.seconds)} to write {amount(saved.bytes)} of a "
                f"checkpoint to {saved.folder}",
                "the disk is slow: use another folder, or save less often",
                culprits=(server,),
            )


def _slow_servers(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    for method in ("Update", "Read"):
        times = {
            server: mean(one.seconds) or 0.0
            for server, status in _statuses(answers)
            for one in status.methods
            if one.method == method and total(one.seconds) >= _ENOUGH_CALLS
        }
        for server, seconds in times.items():
            others = [other for name, other in times.items() if name != server]
            if others and seconds > _SLOWER * max(others):
                yield Finding(
                    f"{server} takes {span(seconds)} for each {method}, the other servers at most "
                    f"{span(max(others))}",
                    "look at its machine's processors and network, and whether the largest "
                    "variables are all there (`stratagem variables`)",
                    culprits=(server,),
                )


def _skewed(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    clocks = [
        (answer.label, answer.status.unix_seconds - answer.time)
        for answer in answers
        if answer.status and answer.status.unix_seconds
    ]
    # An answer may have come that much earlier than it was looked at.
    times = [answer.time for answer in answers]
    least = _MOST_SKEW_SECONDS + max(times, default=0.0) - min(times, default=0.0)
    for (one, here), (other, there) in combinations(clocks, 2):
        if abs(here - there) > least:
            yield Finding(
                f"the clocks of {one} and {other} differ by {span(abs(here - there))}",
                "let NTP set them; training is not affected, but times in logs do not compare",
                culprits=(one, other),
            )


def _different(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    known: dict[str, dict[str, list[str]]] = {}
    for server, status in _statuses(answers):
        for package, version in status.versions.items():
            known.setdefault(package, {}).setdefault(version, []).append(server)
    for package, versions in sorted(known.items()):
        if len(versions) > 1:
            told = (f"{', '.join(who)} {version}" for version, who in sorted(versions.items()))
            yield Finding(
                f"versions of {package} differ: {'; '.join(told)}",
                f"install one version of {package} on all",
                culprits=tuple(server for who in versions.values() for server in who),
            )
