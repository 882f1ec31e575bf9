"""What the page shows of two looks, as JSON has it: rows, a picture, and numbers for curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from statistics import median
from typing import Any, TypeAlias

from stratagem_deploy.watching.asking import (
    ServerAnswer,
    amount,
    calls_of,
    mean,
    of_clients,
    seconds_between,
    span,
    statuses,
)
from stratagem_deploy.watching.clients import Finding, all_waits, clients, session_name, task_name
from stratagem_deploy.watching.rows import (
    call_rows,
    checkpoint_rows,
    client_rows,
    exposure,
    progress_of,
    server_rows,
    step_rows,
    wait_rows,
)
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR, ROLE_SERVER
from stratagem_proto.v1.status_pb2 import MethodStatus, TableFilesStatus

Measures: TypeAlias = Mapping[str, Mapping[str, float]]
"""Values of one moment: of each chart, those of its series by name."""

# More curves than these cannot be told apart.
_MOST_CURVES = 8


def measures(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> Measures:
    """Return the numbers of the time between two looks."""
    rates = {each.label: Rates(each, earlier) for each in answers if each.status}
    stores = {
        each.label: each.status.parameter_server
        for each in of_clients(answers)
        if each.status and each.status.HasField("parameter_server")
    }
    found = {
        "steps": steps_by_worker(answers, earlier),
        "received": {label: rate.received for label, rate in rates.items()},
        "sent": {label: rate.sent for label, rate in rates.items()},
        "update": {
            label: seconds for label, rate in rates.items() if (seconds := rate.mean_of("Update"))
        },
        "waiting": {
            label: float(sum(one.waiting for one in store.waits)) for label, store in stores.items()
        },
        "held": {
            label: float(sum(one.bytes for one in store.totals)) for label, store in stores.items()
        },
    }
    found |= _table_files(of_clients(answers), earlier)
    found |= _scalars(of_clients(answers))
    return {chart: _few_curves(series) for chart, series in found.items() if series}


def _table_files(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]
) -> dict[str, Mapping[str, float]]:
    """Return how many of 100 rows were found in memory since the earlier look, and disk in use."""
    files = {one.label: one.table_files for one in answers if one.table_files is not None}
    before = {one.label: one.table_files for one in earlier if one.table_files is not None}
    hits = dict[str, float]()
    for label, now in files.items():
        was = before.get(label, TableFilesStatus())
        found, missed = now.found_rows - was.found_rows, now.missed_rows - was.missed_rows
        # A server that was started again counts from 0.
        if found >= 0 <= missed and found + missed:
            hits[label] = 100 * found / (found + missed)
    return {"hits": hits, "disk": {label: float(now.file_bytes) for label, now in files.items()}}


def _scalars(answers: Sequence[ServerAnswer]) -> dict[str, Mapping[str, float]]:
    """Return what programs have logged last; a client tells all servers the same."""
    found: dict[str, dict[str, float]] = {}
    for answer in answers:
        for session in answer.status.sessions if answer.status else ():
            for one in session.scalars:
                if isfinite(one.value):
                    found.setdefault(f"scalar/{one.name}", {})[session_name(session)] = one.value
    return {**found}


def steps_by_worker(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]
) -> Mapping[str, float]:
    """Return how many steps each worker takes by the second.

    A step of a program may be one of several optimizers, so the one that steps most often counts.
    """
    found = defaultdict[str, float](float)
    for one in progress_of(of_clients(answers), of_clients(earlier)):
        if not one.clock.gone:
            found[one.worker] = max(found[one.worker], one.by_the_second or 0.0)
    return found


class Rates:
    """What a server did between two looks, by the second.

    Args:
        answer: What it says now.
        earlier: What all said before.

    Attributes:
        received: Bytes of tensors that it received.
        sent: Bytes of tensors that it sent.
    """

    def __init__(self, answer: ServerAnswer, earlier: Sequence[ServerAnswer]) -> None:
        self._methods = calls_of([answer], earlier)
        seconds = seconds_between([answer], earlier)
        methods: Sequence[MethodStatus] = [*self._methods.values()]
        self.received = sum(one.received_bytes.sum for one in methods) / seconds
        self.sent = sum(one.sent_bytes.sum for one in methods) / seconds

    def mean_of(self, method: str) -> float | None:
        """Return how many seconds its calls of a method took on average; None without calls."""
        found = self._methods.get(method)
        return mean(found.seconds) if found else None


def held_bytes(answer: ServerAnswer) -> int:
    """Return the memory of the variables of a server that answered."""
    return sum(one.bytes for one in answer.status.parameter_server.totals) if answer.status else 0


def _few_curves(series: Mapping[str, float]) -> Mapping[str, float]:
    if len(series) <= _MOST_CURVES:
        return series
    values = [*series.values()]
    return {"most": max(values), "median": median(values), "least": min(values)}


# Rows of the picture, from above.
_PROGRAM, _WORKER, _SERVER = "program", "worker", "server"


@dataclass
class Node:
    """A process.

    Attributes:
        name: Its task.
        tier: Its row: "program", "worker" or "server".
        lines: What it does, in words.
        state: What is unusual about it: "does not answer", "silent", "waits", "holds others up".
    """

    name: str
    tier: str
    lines: list[str] = field(default_factory=list)
    state: str = ""


@dataclass(frozen=True)
class Link:
    """A client that has a session with a server.

    Attributes:
        client: The client.
        server: The server.
        rate: Bytes of tensors by the second, both ways; 0 where none are known of.
        moved: The same in words, with an arrow down for those to the server; "" likewise.
    """

    client: str
    server: str
    rate: float
    moved: str


@dataclass(frozen=True)
class Arrow:
    """A client that waits for somebody, in words what for."""

    client: str
    whom: str
    words: str


def picture(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer], found: Sequence[Finding]
) -> dict[str, Any]:
    """Return nodes, links and waits, as JSON has them.

    Args:
        answers: What servers say now.
        earlier: What they said before.
        found: What is wrong.
    """
    nodes = {node.name: node for node in _servers(answers, earlier)}
    for node in _clients(of_clients(answers), earlier):
        # A worker server is a client of parameter servers as well.
        known = nodes.setdefault(node.name, node)
        known.lines, known.state = node.lines or known.lines, known.state or node.state
    arrows = [*_arrows(of_clients(answers))]
    for arrow in arrows:
        if (waiting := nodes.get(arrow.client)) and not waiting.state:
            waiting.state = "waits"
    for finding in found:
        for culprit in finding.culprits if finding.stalls else ():
            if (guilty := nodes.get(culprit)) and guilty.state in ("", "waits"):
                guilty.state = "holds others up"
    return {
        "nodes": [asdict(node) for node in nodes.values()],
        "links": [asdict(link) for link in _links(of_clients(answers), earlier)],
        "waits": [asdict(arrow) for arrow in arrows],
    }


def _servers(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> Iterator[Node]:
    for answer in answers:
        if answer.status is None:
            if answer.is_missed:
                yield Node(answer.label, _SERVER, state="does not answer")
        elif answer.status.HasField("worker_server"):
            work = answer.status.worker_server
            yield Node(answer.label, _WORKER, [f"{work.running} running, {work.queued} queued"])
        elif answer.status.HasField("reader_server"):
            reader = answer.status.reader_server
            state = "lost its source" if reader.source_problem else ""
            age = span(reader.age_seconds) if reader.version else "none yet"
            yield Node(answer.label, _SERVER, [f"version {reader.version}", age], state)
        else:
            rates = Rates(answer, earlier)
            moved = _flow(rates.received, rates.sent)
            yield Node(answer.label, _SERVER, [amount(held_bytes(answer)), moved])


def _clients(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> Iterator[Node]:
    steps, known = steps_by_worker(answers, earlier), clients(answers)
    # Those that have workers run their functions.
    programs = {
        session_name(session)
        for _, status in statuses(answers)
        for session in status.sessions
        if session.role == ROLE_COORDINATOR or status.HasField("worker_server")
    }
    for name, client in sorted(known.items(), key=lambda each: _numbered(each[0])):
        lines = [f"{steps[name]:.1f} steps/s"] if name in steps else []
        silent = f"silent for {span(client.silent)}" if client.is_silent else ""
        yield Node(name, _PROGRAM if name in programs else _WORKER, lines, silent)


def _numbered(name: str) -> tuple[str, int, str]:
    job, _, index = name.partition(":")
    return job, int(index) if index.isdecimal() else 0, name


def _links(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> Iterator[Link]:
    before = {
        (each.status.incarnation, session.digest): session
        for each in earlier
        if each.status
        for session in each.status.sessions
    }
    for answer in answers:
        flows: dict[str, list[float]] = {}
        seconds = seconds_between([answer], earlier)
        for session in answer.status.sessions if answer.status else ():
            if answer.status and session.role != ROLE_SERVER:
                known = before.get((answer.status.incarnation, session.digest), session)
                flow = flows.setdefault(session_name(session), [0.0, 0.0])
                flow[0] += (session.received_bytes - known.received_bytes) / seconds
                flow[1] += (session.sent_bytes - known.sent_bytes) / seconds
        for name, (received, sent) in flows.items():
            moved = _flow(received, sent) if received or sent else ""
            yield Link(name, answer.label, received + sent, moved)


def _flow(received: float, sent: float) -> str:
    return f"↓ {amount(received)}/s  ↑ {amount(sent)}/s"


def _arrows(answers: Sequence[ServerAnswer]) -> Iterator[Arrow]:
    # Of waits for the same client, on several servers, the longest is shown.
    shown: set[tuple[str, str]] = set()
    waits = (wait for _, wait in all_waits(answers))
    for wait in sorted(waits, key=lambda each: -each.seconds):
        for awaited in wait.awaited:
            pair = task_name(wait.client), task_name(awaited.client)
            if pair[0] != pair[1] and pair not in shown:
                shown.add(pair)
                yield Arrow(*pair, f"waits {span(wait.seconds)} for {task_name(wait.subject)}")


def view(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer], found: Sequence[Finding]
) -> dict[str, Any]:
    """Return all that there is to show but for curves and events.

    Args:
        answers: What servers say now.
        earlier: What they said before.
        found: What is wrong, as the doctor finds it.
    """
    called, before = of_clients(answers), of_clients(earlier)
    return {
        "summary": _summary(answers, earlier),
        "findings": [finding.facts() for finding in found],
        "exposure": exposure(answers),
        "picture": picture(answers, earlier, found),
        "servers": _rows(server_rows(answers)),
        "clients": _rows(client_rows(called)),
        "steps": _rows(step_rows(called, before)),
        "waits": _rows(wait_rows(called)),
        "calls": _rows(call_rows(answers, earlier)),
        "checkpoints": _rows(checkpoint_rows(answers)),
    }


def _rows(rows: Iterable[Any]) -> list[dict[str, str]]:
    return [asdict(row) for row in rows]


def _summary(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> dict[str, str]:
    rates = [Rates(each, earlier) for each in answers if each.status]
    expected = [each for each in answers if each.status or each.is_missed]
    up = sum(1 for each in expected if each.status)
    called = of_clients(answers)
    return {
        "servers": str(up) if up == len(expected) else f"{up} of {len(expected)}",
        "clients": str(len(clients(called))),
        "steps": f"{sum(steps_by_worker(answers, earlier).values()):.1f}",
        "received": f"{amount(sum(rate.received for rate in rates))}/s",
        "sent": f"{amount(sum(rate.sent for rate in rates))}/s",
        "held": amount(sum(map(held_bytes, called))),
    }
