"""What servers say, as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from rich import box
from rich.markup import escape
from rich.table import Table

from stratagem_deploy.watching.amounts import amount, mean, quantile, span
from stratagem_deploy.watching.asking import ServerAnswer, of_clients
from stratagem_deploy.watching.diagnosis.clients import task_name
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_deploy.watching.diagnosis.waits import all_waits
from stratagem_deploy.watching.standings import described
from stratagem_proto.consistency import MODE_NAMES
from stratagem_proto.v1.consistency_pb2 import WorkerClock
from stratagem_proto.v1.session_pb2 import Role
from stratagem_proto.v1.status_pb2 import (
    Distribution,
    GetStatusResponse,
    MethodStatus,
    ParameterServerStatus,
    SessionStatus,
    WorkerServerStatus,
)
from stratagem_proto.v1.waits_pb2 import Awaited


def calls_of(
    answers: Iterable[ServerAnswer], earlier: Iterable[ServerAnswer] = ()
) -> dict[str, MethodStatus]:
    """Return the calls of all servers by method.

    Args:
        answers: What they say now.
        earlier: What they said before; calls that had ended by then do not count.
    """
    before = {
        (answer.status.incarnation, method.method): method
        for answer in earlier
        if answer.status
        for method in answer.status.methods
    }
    summed: dict[str, MethodStatus] = {}
    for answer in answers:
        for method in answer.status.methods if answer.status else ():
            total = summed.setdefault(method.method, MethodStatus())
            _add(total, method, 1)
            if answer.status and (known := before.get((answer.status.incarnation, method.method))):
                _add(total, known, -1)
    return summed


def _add(summed: MethodStatus, method: MethodStatus, sign: int) -> None:
    for code, count in method.ended.items():
        summed.ended[code] += sign * count
    _add_distribution(summed.seconds, method.seconds, sign)
    _add_distribution(summed.received_bytes, method.received_bytes, sign)
    _add_distribution(summed.sent_bytes, method.sent_bytes, sign)


def _add_distribution(mine: Distribution, other: Distribution, sign: int) -> None:
    if not other.counts:
        return
    if not mine.counts:
        mine.bounds[:], mine.counts[:] = other.bounds, [0] * len(other.counts)
    pairs = zip(mine.counts, other.counts, strict=True)
    mine.counts[:] = [a + sign * b for a, b in pairs]
    mine.sum += sign * other.sum


def tables(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer] = ()
) -> Iterator[Table]:
    """Yield what there is to show of servers, their clients and their calls.

    Args:
        answers: What they say now.
        earlier: What they said before. If given, steps and calls are those since then, by the
            second.
    """
    yield _servers(answers)
    called = of_clients(answers)
    for table in (
        _clients(answer.status for answer in called if answer.status),
        _waits(called),
        _workers(called, of_clients(earlier)),
        _methods(answers, earlier),
    ):
        if table.row_count:
            yield table


def _servers(answers: Sequence[ServerAnswer]) -> Table:
    table = _table("Servers", "server", "address", "up", "clients", "holds", "doing")
    for answer in answers:
        if answer.status is not None:
            table.add_row(answer.label, answer.place.address, *_server(answer.status))
        elif answer.is_missed:
            problem = f"[red]{escape(answer.problem)}[/red]"
            table.add_row(answer.label, answer.place.address, "", "", "", problem)
    exposed = [each.label for each in answers if each.status and each.status.insecure]
    if exposed:
        told = f"What {', '.join(exposed)} send is not encrypted; --tls encrypts it."
        table.caption, table.caption_justify = told, "left"
    return table


def _server(status: GetStatusResponse) -> tuple[str, str, str, str]:
    holds, doing = (
        (_variables(status.parameter_server), _server_work(status.parameter_server))
        if status.HasField("parameter_server")
        else (_results(status.worker_server), _closures(status.worker_server))
    )
    return span(status.uptime_seconds), str(len(status.sessions)), holds, doing


def _variables(server: ParameterServerStatus) -> str:
    number = sum(one.count for one in server.totals)
    rows = sum(one.table_rows for one in server.totals)
    size = amount(sum(one.bytes for one in server.totals))
    return f"{number} variables, {size}" + (f", {rows} rows of tables" if rows else "")


def _server_work(server: ParameterServerStatus) -> str:
    words = [described(server.replication)] if server.HasField("replication") else []
    words.append(f"{amount(server.staged.used)} staged")
    waits = (wait for wait in server.waits if wait.waiting)
    words += [f"{wait.waiting} wait ({wait.reason})" for wait in waits]
    if server.incumbent.program:
        words.append(f"{server.incumbent.name} coordinates, as number {server.incumbent.number}")
    checkpoint = server.checkpoint
    if checkpoint.HasField("age_seconds"):
        words.append(f"checkpoint {span(checkpoint.age_seconds)} old")
    elif checkpoint.restored_from:
        words.append("restored")
    return ", ".join(words)


def _results(server: WorkerServerStatus) -> str:
    number, nbytes = server.staying_results, server.staying_result_bytes
    return f"{number} results, {amount(nbytes)}"


def _closures(server: WorkerServerStatus) -> str:
    ended = sum(server.ended.values())
    failed = ended - server.ended.get("OK", 0)
    work = f"{server.running} running, {server.queued} queued, {ended} done"
    return work + (f", {failed} of them failed" if failed else "")


def _clients(statuses: Iterable[GetStatusResponse]) -> Table:
    """Return each client once, by the server that has heard of it last."""
    table = _table("Clients", "client", "role", "last heard of", "servers", "own time for a step")
    found: dict[tuple[str, str], list[SessionStatus]] = {}
    for session in chain.from_iterable(status.sessions for status in statuses):
        task, role = session.task, Role.Name(session.role).removeprefix("ROLE_")
        label = f"{task.job}:{task.index}" if task.job else "program"
        found.setdefault((label, role.lower()), []).append(session)
    for key, sessions in sorted(found.items()):
        silence = min(session.silent_seconds for session in sessions)
        paces = [span(each.pace.own_seconds) for each in sessions if each.HasField("pace")]
        own = paces[0] if paces else ""
        table.add_row(*key, f"{span(silence)} ago", str(len(sessions)), own)
    return table


def _waits(answers: Iterable[ServerAnswer]) -> Table:
    table = _table("Waits", "client", "waits for", "since", "on", "for whom")
    for server, wait in all_waits(answers):
        whom = ", ".join(map(_whom, wait.awaited))
        client, subject = task_name(wait.client), task_name(wait.subject)
        table.add_row(client, subject, span(wait.seconds), server, whom)
    return table


def _whom(awaited: Awaited) -> str:
    since = f" ({span(awaited.seconds)})" if awaited.seconds else ""
    return task_name(f"{awaited.missing} of {awaited.client}") + since


def findings_table(findings: Iterable[Finding]) -> Table:
    """Return what is wrong with a cluster, and what to do, as a table."""
    table = _table("Findings", "", "what", "what to do")
    for number, finding in enumerate(findings, 1):
        what = f"[red]{escape(finding.what)}[/red]" if finding.stalls else escape(finding.what)
        table.add_row(str(number), what, escape(finding.remedy))
    return table


def _workers(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> Table:
    steps = "steps/s" if earlier else "steps"
    columns = ("optimizer", "consistency", "worker", steps, "staleness", "dropped")
    table = _table("Steps", *columns, "")
    before, seconds = dict(_clocks(earlier)), _between(answers, earlier)
    for (group, mode, task), clock in _clocks(answers):
        finished = str(clock.finished)
        if earlier:
            known = before.get((group, mode, task), clock)
            finished = f"{(clock.finished - known.finished) / seconds:.1f}"
        worker = task_name(task)
        staleness, dropped = _staleness(clock.staleness), str(clock.dropped)
        table.add_row(group, mode, worker, finished, staleness, dropped, clock.gone)
    return table


def _clocks(answers: Iterable[ServerAnswer]) -> Iterator[tuple[tuple[str, str, str], WorkerClock]]:
    statuses = (answer.status for answer in answers if answer.status)
    for group in chain.from_iterable(s.parameter_server.groups for s in statuses):
        for clock in group.workers:
            mode = MODE_NAMES.get(group.consistency.mode, "")
            yield (group.group, mode, clock.task), clock


def _staleness(buckets: Sequence[int]) -> str:
    """Return the median and the most, each as the bucket that it is in."""
    running, half = 0, sum(buckets) / 2
    for bucket, count in enumerate(buckets):
        running += count
        if running >= half > 0:
            return f"{_steps(bucket)}, at most {_steps(len(buckets) - 1)}"
    return ""


def _steps(bucket: int) -> str:
    if bucket < 2:
        return str(bucket)
    return f"{1 << (bucket - 1)}-{(1 << bucket) - 1}"


def _methods(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> Table:
    unit, seconds = ("/s", _between(answers, earlier)) if earlier else ("", 1.0)
    counts = (f"calls{unit}", "failed", "mean", "99 % within")
    table = _table("Calls", "method", *counts, f"received{unit}", f"sent{unit}")
    for name, method in sorted(calls_of(answers, earlier).items()):
        if any(method.ended.values()):
            table.add_row(name, *_calls(method, seconds, 1 if earlier else 0))
    return table


def _calls(method: MethodStatus, seconds: float, digits: int) -> tuple[str, ...]:
    ended = sum(method.ended.values())
    bytes_in, bytes_out = method.received_bytes.sum, method.sent_bytes.sum
    return (
        f"{ended / seconds:.{digits}f}",
        str(ended - method.ended.get("OK", 0)),
        span(mean(method.seconds) or 0.0),
        span(quantile(method.seconds, 0.99) or 0.0),
        amount(bytes_in / seconds) if bytes_in else "",
        amount(bytes_out / seconds) if bytes_out else "",
    )


def _between(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> float:
    """Return the seconds between two looks."""
    return answers[0].time - earlier[0].time if answers and earlier else 1.0


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column)
    return table
