"""Servers and their machines: memory, speed, clocks and versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from stratagem_deploy.watching.amounts import amount, mean, span, total
from stratagem_deploy.watching.asking import ServerAnswer, statuses
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_proto.v1.status_pb2 import Budget

# Of a budget in use; what comes next may be refused.
_NEARLY_FULL = 0.9

# Leases and deadlines are measured by each machine for itself: clocks matter to people who compare
# logs. A second is what NTP keeps by far.
_MOST_SKEW_SECONDS = 2.0

# A client repeats a request sooner for which there was no memory.
_REPEATED_SECONDS = 5.0

# A server is slow that takes so many times as long as the others, over so many calls.
_SLOWER, _ENOUGH_CALLS = 3.0, 20


def missed(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers that should have answered and did not, but for replicas."""
    for answer in answers:
        if answer.is_missed and answer.place.replica is None:
            yield _stranger(answer) if answer.refused else _silent(answer)


def _silent(answer: ServerAnswer) -> Finding:
    return Finding(
        f"{answer.label} does not answer: {answer.problem}",
        "look at its log and its machine; a process that is stopped or a network that is cut looks "
        "the same. Started again with --restore it goes on from its checkpoint",
        stalls=True,
        culprits=(answer.label,),
    )


def _stranger(answer: ServerAnswer) -> Finding:
    # To start it again would lose what it has.
    return Finding(
        f"{answer.label} serves, and does not take this command for one of its cluster: "
        f"{answer.problem}",
        "give this command the token or the certificates of the server's cluster",
    )


def refusing(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers that have no memory for requests, which clients repeat meanwhile."""
    for server, status in statuses(answers):
        staged = status.parameter_server.staged
        if staged.HasField("refused") and staged.refused_seconds < _REPEATED_SECONDS:
            yield Finding(
                f"{server} refuses requests: one needed {amount(staged.refused)}, but "
                f"{amount(staged.used)} of {amount(staged.limit)} are in use (--staged-bytes)",
                "raise --staged-bytes, or use more servers",
                stalls=True,
                culprits=(server,),
            )


def full(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers whose memory is almost used up."""
    for server, status in statuses(answers):
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


def slow_servers(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the servers that take much longer than all others for the same requests."""
    for method in ("Update", "Read"):
        times = {
            server: mean(one.seconds) or 0.0
            for server, status in statuses(answers)
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


def skewed(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the pairs of servers whose clocks disagree."""
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


def different(answers: Sequence[ServerAnswer]) -> Iterator[Finding]:
    """Yield the packages of which servers have different versions."""
    known: dict[str, dict[str, list[str]]] = {}
    for server, status in statuses(answers):
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
