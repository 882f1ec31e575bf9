"""The cluster as a picture: who is there, who talks to whom, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stratagem_deploy.dashboard.measures import Rates, held_bytes, steps_by_worker
from stratagem_deploy.watching.amounts import amount, span
from stratagem_deploy.watching.asking import ServerAnswer, of_clients
from stratagem_deploy.watching.calls import seconds_between
from stratagem_deploy.watching.diagnosis.clients import clients, session_name, task_name
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_deploy.watching.diagnosis.waits import all_waits
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR, ROLE_SERVER

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
    _mark(nodes, arrows, found)
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
        else:
            rates = Rates(answer, earlier)
            moved = _flow(rates.received, rates.sent)
            yield Node(answer.label, _SERVER, [amount(held_bytes(answer)), moved])


def _clients(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> Iterator[Node]:
    steps, known = steps_by_worker(answers, earlier), clients(answers)
    programs = _programs(answers)
    for name, client in sorted(known.items(), key=lambda each: _numbered(each[0])):
        lines = [f"{steps[name]:.1f} steps/s"] if name in steps else []
        silent = f"silent for {span(client.silent)}" if client.is_silent else ""
        yield Node(name, _PROGRAM if name in programs else _WORKER, lines, silent)


def _programs(answers: Sequence[ServerAnswer]) -> set[str]:
    """Return the clients that have workers run their functions."""
    return {
        session_name(session)
        for answer in answers
        if answer.status
        for session in answer.status.sessions
        if session.role == ROLE_COORDINATOR or answer.status.HasField("worker_server")
    }


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
    # Of waits for the same client, on several servers, the longest is told.
    told: set[tuple[str, str]] = set()
    waits = (wait for _, wait in all_waits(answers))
    for wait in sorted(waits, key=lambda each: -each.seconds):
        for awaited in wait.awaited:
            pair = task_name(wait.client), task_name(awaited.client)
            if pair[0] != pair[1] and pair not in told:
                told.add(pair)
                yield Arrow(*pair, f"waits {span(wait.seconds)} for {task_name(wait.subject)}")


def _mark(nodes: Mapping[str, Node], arrows: Sequence[Arrow], found: Sequence[Finding]) -> None:
    for arrow in arrows:
        if (node := nodes.get(arrow.client)) and not node.state:
            node.state = "waits"
    for finding in found:
        for culprit in finding.culprits if finding.stalls else ():
            if (node := nodes.get(culprit)) and node.state in ("", "waits"):
                node.state = "holds others up"
