"""What servers say, row by row and in words, for a terminal and for the dashboard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from stratagem_deploy.watching.asking import (
    ServerAnswer,
    amount,
    calls_of,
    mean,
    quantile,
    seconds_between,
    span,
    statuses,
)
from stratagem_deploy.watching.clients import all_waits, task_name
from stratagem_proto.consistency import MODE_NAMES
from stratagem_proto.v1.consistency_pb2 import WorkerClock
from stratagem_proto.v1.replication_pb2 import (
    STANDING_CATCHING_UP,
    STANDING_FENCED,
    STANDING_PRIMARY,
    ReplicationStatus,
    Standing,
)
from stratagem_proto.v1.session_pb2 import Role
from stratagem_proto.v1.status_pb2 import (
    ParameterServerStatus,
    ReaderServerStatus,
    SessionStatus,
    TableFilesStatus,
    WorkerServerStatus,
)

_WORDS: dict[Standing, str] = {
    STANDING_CATCHING_UP: "catches up",
    STANDING_FENCED: "may not answer clients at present",
}


def standing_word(status: ReplicationStatus) -> str:
    """Return what a replica is, for instance "backup"."""
    name = Standing.Name(status.standing).removeprefix("STANDING_").lower()
    return _WORDS.get(status.standing, name)


def replica_words(status: ReplicationStatus) -> str:
    """Return what a replica is, in which epoch, and how far the backup is behind.

    Of a task that may move, return where it is.
    """
    if status.is_movable:
        words = [_where(status)]
    else:
        words = [standing_word(status)]
        if status.HasField("view"):
            words.append(f"epoch {status.view.epoch}")
        if status.standing == STANDING_PRIMARY and not status.view.HasField("backup"):
            words.append("no backup")
    if status.behind:
        words.append(f"{status.behind} records behind")
    if status.trouble:
        words.append(status.trouble)
    return ", ".join(words)


def _where(status: ReplicationStatus) -> str:
    """Return where a task is that may move, in words."""
    own, view = f"server {status.replica.index}", status.view
    if status.standing == STANDING_PRIMARY:
        goes = f", goes to server {view.backup.index}" if view.HasField("backup") else ""
        return f"on {own}{goes}"
    if status.standing == STANDING_CATCHING_UP:
        there = f", but on server {view.primary.index}" if view.HasField("primary") else ""
        return f"not on {own}{there}"
    return f"{standing_word(status)}, {own}"


@dataclass(frozen=True)
class ServerRow:
    """A server; all but the first two are empty where it did not answer, and `problem` says why."""

    server: str
    address: str
    release: str = ""
    up: str = ""
    clients: str = ""
    holds: str = ""
    doing: str = ""
    problem: str = ""


@dataclass(frozen=True)
class ClientRow:
    """A client, by the server that has heard of it last."""

    client: str
    role: str
    release: str
    last_heard_of: str
    servers: str
    own_time: str


@dataclass(frozen=True)
class WaitRow:
    """Who waits for whom."""

    client: str
    waits_for: str
    since: str
    on: str
    for_whom: str


@dataclass(frozen=True)
class StepRow:
    """A worker under an optimizer; `steps` are by the second where there was an earlier look."""

    optimizer: str
    consistency: str
    worker: str
    steps: str
    staleness: str
    dropped: str
    gone: str


@dataclass(frozen=True)
class CallRow:
    """The calls of a method; counts and bytes by the second where there was an earlier look."""

    method: str
    calls: str
    failed: str
    mean: str
    within: str
    received: str
    sent: str


@dataclass(frozen=True)
class CheckpointRow:
    """What a run of a server has written of checkpoints; the last one first."""

    server: str
    folder: str
    age: str
    size: str
    took: str
    written: str
    failed: str
    restored_from: str


def server_rows(answers: Iterable[ServerAnswer]) -> Iterator[ServerRow]:
    """Yield the servers that answered, and those that should have."""
    for answer in answers:
        address, status = answer.place.address, answer.status
        if status is None:
            if answer.is_missed:
                yield ServerRow(answer.label, address, problem=answer.problem)
            continue
        if status.HasField("parameter_server"):
            holds, doing = _of_parameter_server(status.parameter_server)
        elif status.HasField("reader_server"):
            holds, doing = of_reader_server(status.reader_server)
        else:
            holds, doing = _of_worker_server(status.worker_server)
        up, clients = span(status.uptime_seconds), str(len(status.sessions))
        release = status.versions.get("stratagem", "")
        yield ServerRow(answer.label, address, release, up, clients, holds, doing)


def mixture(answers: Iterable[ServerAnswer]) -> str:
    """Return which processes run which releases, as a sentence; "" if all run the same one."""
    found: dict[str, set[str]] = {}
    for label, status in statuses(answers):
        # Of an early release, which does not say it of itself.
        found.setdefault(status.versions.get("stratagem", ""), set()).add(label)
        for session in status.sessions:
            if session.task.job:
                client = f"{session.task.job}:{session.task.index}"
                found.setdefault(session.release, set()).add(client)
    known = {release: who for release, who in found.items() if release}
    if len(known) < 2:
        return ""
    each = [f"{release} ({', '.join(sorted(who))})" for release, who in sorted(known.items())]
    return f"Releases are mixed: {'; '.join(each)}."


def exposure(answers: Iterable[ServerAnswer]) -> str:
    """Return which servers other machines reach unencrypted, as a sentence; "" if none."""
    exposed = [each.label for each in answers if each.status and each.status.insecure]
    if not exposed:
        return ""
    return f"What {', '.join(exposed)} send is not encrypted; --tls encrypts it."


def _of_parameter_server(server: ParameterServerStatus) -> tuple[str, str]:
    """Return what it holds and what it does, in words."""
    number = sum(one.count for one in server.totals)
    rows = sum(one.table_rows for one in server.totals)
    size = amount(sum(one.bytes for one in server.totals))
    holds = f"{number} variables, {size}" + (f", {rows} rows of tables" if rows else "")
    words = [replica_words(server.replication)] if server.HasField("replication") else []
    words.append(f"{amount(server.staged.used)} staged")
    if server.HasField("table_files"):
        words.append(_of_table_files(server.table_files))
    waits = (wait for wait in server.waits if wait.waiting)
    words += [f"{wait.waiting} wait ({wait.reason})" for wait in waits]
    if server.incumbent.program:
        words.append(f"{server.incumbent.name} coordinates, as number {server.incumbent.number}")
    checkpoint = server.checkpoint
    if checkpoint.HasField("age_seconds"):
        words.append(f"checkpoint {span(checkpoint.age_seconds)} old")
    elif checkpoint.restored_from:
        words.append("restored")
    if server.HasField("publication"):
        published = server.publication
        words.append(f"version {published.version}, {span(published.age_seconds)} old")
    return holds, ", ".join(words)


def _of_table_files(files: TableFilesStatus) -> str:
    """Return how much of the tables is in memory, and what the disk does, in words."""
    if files.failure:
        return f"its disk of tables has failed: {files.failure}"
    there = f"{amount(files.resident.used)} of {amount(files.row_bytes)} of tables in memory"
    words = [there, f"{amount(files.file_bytes)} on disk"]
    if asked := files.found_rows + files.missed_rows:
        words.append(f"{files.found_rows / asked:.1%} of rows found in memory")
    if files.lookups:
        words.append(f"{files.missed_rows / files.lookups:.1f} rows read a lookup")
    if files.changed_bytes:
        words.append(f"write amplification {files.written_bytes / files.changed_bytes:.1f}")
    return ", ".join(words)


def _of_worker_server(server: WorkerServerStatus) -> tuple[str, str]:
    """Return what it holds and what it does, in words."""
    ended = sum(server.ended.values())
    failed = ended - server.ended.get("OK", 0)
    work = f"{server.running} running, {server.queued} queued, {ended} done"
    holds = f"{server.staying_results} results, {amount(server.staying_result_bytes)}"
    return holds, work + (f", {failed} of them failed" if failed else "")


def of_reader_server(server: ReaderServerStatus) -> tuple[str, str]:
    """Return what it holds and what it does, in words."""
    rows = f", {server.table_rows} rows of tables" if server.table_rows else ""
    holds = f"{server.variables} variables, {amount(server.bytes)}{rows}"
    if not server.HasField("age_seconds"):
        words = [f"no version of {server.source} yet"]
    else:
        words = [f"version {server.version}, {span(server.age_seconds)} old"]
    if server.HasField("max_age_seconds") and server.age_seconds > server.max_age_seconds:
        words.append(f"answers none older than {span(server.max_age_seconds)}")
    if server.source_problem:
        words.append(f"its source is lost: {server.source_problem}")
    return holds, ", ".join([*words, f"{server.looked_up_rows} rows answered"])


def client_rows(answers: Iterable[ServerAnswer]) -> Iterator[ClientRow]:
    """Yield each client once."""
    found: dict[tuple[str, str], list[SessionStatus]] = {}
    for session in chain.from_iterable(status.sessions for _, status in statuses(answers)):
        task, role = session.task, Role.Name(session.role).removeprefix("ROLE_")
        label = f"{task.job}:{task.index}" if task.job else "program"
        found.setdefault((label, role.lower()), []).append(session)
    for key, sessions in sorted(found.items(), key=lambda each: _numbered(each[0])):
        silence = min(session.silent_seconds for session in sessions)
        paces = [span(each.pace.own_seconds) for each in sessions if each.HasField("pace")]
        releases = sorted({session.release for session in sessions if session.release})
        heard, pace = f"{span(silence)} ago", paces[0] if paces else ""
        yield ClientRow(*key, ", ".join(releases), heard, str(len(sessions)), pace)


def _numbered(client: tuple[str, str]) -> tuple[str, int, str]:
    """Return the order of clients, worker:10 after worker:9."""
    label, role = client
    job, _, index = label.partition(":")
    return job, int(index or 0), role


def wait_rows(answers: Iterable[ServerAnswer]) -> Iterator[WaitRow]:
    for server, wait in all_waits(answers):
        whom = ", ".join(
            task_name(f"{each.missing} of {each.client}")
            + (f" ({span(each.seconds)})" if each.seconds else "")
            for each in wait.awaited
        )
        client, subject = task_name(wait.client), task_name(wait.subject)
        yield WaitRow(client, subject, span(wait.seconds), server, whom)


@dataclass(frozen=True)
class Progress:
    """The steps of a worker under an optimizer.

    Attributes:
        optimizer: The optimizer.
        consistency: Its consistency.
        worker: The worker.
        clock: What the server says of it.
        by_the_second: Its steps by the second since the earlier look; None without one.
    """

    optimizer: str
    consistency: str
    worker: str
    clock: WorkerClock
    by_the_second: float | None


def progress_of(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer] = ()
) -> Iterator[Progress]:
    """Yield the steps of all workers, under each optimizer.

    Args:
        answers: What servers say now.
        earlier: What they said before.
    """
    # A server that was started again may count from an earlier step.
    before, seconds = dict(_clocks(earlier)), seconds_between(answers, earlier)
    for key, clock in _clocks(answers):
        _, group, mode, task = key
        rate = (clock.finished - before.get(key, clock).finished) / seconds if earlier else None
        yield Progress(group, mode, task_name(task), clock, rate)


def step_rows(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer] = ()
) -> Iterator[StepRow]:
    """Yield the same in words."""
    for one in progress_of(answers, earlier):
        clock, rate = one.clock, one.by_the_second
        steps = str(clock.finished) if rate is None else f"{rate:.1f}"
        staleness, dropped = _staleness(clock.staleness), str(clock.dropped)
        named = one.optimizer, one.consistency, one.worker
        yield StepRow(*named, steps, staleness, dropped, clock.gone)


def _clocks(
    answers: Iterable[ServerAnswer],
) -> Iterator[tuple[tuple[bytes, str, str, str], WorkerClock]]:
    for _, status in statuses(answers):
        for group in status.parameter_server.groups:
            mode = MODE_NAMES.get(group.consistency.mode, "")
            for clock in group.workers:
                yield (status.incarnation, group.group, mode, clock.task), clock


def _staleness(buckets: Sequence[int]) -> str:
    """Return the median and the most, each as the bucket that it is in."""

    def steps(bucket: int) -> str:
        return str(bucket) if bucket < 2 else f"{1 << (bucket - 1)}-{(1 << bucket) - 1}"

    running, half = 0, sum(buckets) / 2
    for bucket, count in enumerate(buckets):
        running += count
        if running >= half > 0:
            return f"{steps(bucket)}, at most {steps(len(buckets) - 1)}"
    return ""


def call_rows(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer] = ()
) -> Iterator[CallRow]:
    """Yield the methods that were called."""
    seconds, digits = (seconds_between(answers, earlier), 1) if earlier else (1.0, 0)
    for name, method in sorted(calls_of(answers, earlier).items()):
        ended = sum(method.ended.values())
        bytes_in, bytes_out = method.received_bytes.sum, method.sent_bytes.sum
        if any(method.ended.values()):
            yield CallRow(
                name,
                f"{ended / seconds:.{digits}f}",
                str(ended - method.ended.get("OK", 0)),
                span(mean(method.seconds) or 0.0),
                span(quantile(method.seconds, 0.99) or 0.0),
                amount(bytes_in / seconds) if bytes_in else "",
                amount(bytes_out / seconds) if bytes_out else "",
            )


def checkpoint_rows(answers: Iterable[ServerAnswer]) -> Iterator[CheckpointRow]:
    """Yield the servers that have read or written checkpoints, or tried to."""
    for server, status in statuses(answers):
        one = status.parameter_server.checkpoint
        if one.saves or one.failures or one.restored_from:
            last = ("", "", "", "")
            if one.HasField("folder"):
                age, took = span(one.age_seconds), span(one.seconds)
                last = (one.folder, f"{age} ago", amount(one.bytes), took)
            yield CheckpointRow(server, *last, str(one.saves), str(one.failures), one.restored_from)
