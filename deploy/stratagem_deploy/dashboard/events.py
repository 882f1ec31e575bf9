"""What has happened to a cluster between two looks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stratagem_deploy.watching.amounts import amount, span
from stratagem_deploy.watching.asking import ServerAnswer, of_clients, statuses
from stratagem_deploy.watching.diagnosis.clients import clients
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_proto.v1.status_pb2 import GetStatusResponse, LostClient

# More clients than these, coming or going at once, are told by their number.
_MOST_NAMES = 4


KINDS = ("problem", "change", "note")


@dataclass(frozen=True)
class Event:
    """Something that has happened.

    Attributes:
        kind: One of KINDS.
        what: What it is.
    """

    kind: str
    what: str


def events(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> Iterator[Event]:
    """Yield what is different from an earlier look."""
    before = {each.label: each for each in earlier}
    for answer in answers:
        if (known := before.get(answer.label)) is not None:
            yield from _of_server(answer, known)
    yield from _of_clients(answers, earlier)


def _of_server(answer: ServerAnswer, known: ServerAnswer) -> Iterator[Event]:
    name, now, then = answer.label, answer.status, known.status
    if now is None:
        if then is not None:
            yield Event("problem", f"{name} does not answer: {answer.problem}")
    elif then is None:
        yield Event("change", f"{name} answers, for {span(now.uptime_seconds)} by now")
    elif now.pid != then.pid and answer.place.address != known.place.address:
        yield Event("change", f"{name} is at {answer.place.address} now")
    elif now.incarnation != then.incarnation:
        yield Event("problem", f"{name} was started again {span(now.uptime_seconds)} ago")
    else:
        yield from _failed_calls(name, now, then)
        yield from _checkpoints(name, now, then)


def _failed_calls(name: str, now: GetStatusResponse, then: GetStatusResponse) -> Iterator[Event]:
    before = {one.method: one.ended for one in then.methods}
    for one in now.methods:
        for code, count in one.ended.items():
            more = count - (before[one.method].get(code, 0) if one.method in before else 0)
            if code != "OK" and more > 0:
                calls = f"{more} calls" if more > 1 else "a call"
                yield Event("problem", f"{name}: {calls} of {one.method} ended with {code}")


def _checkpoints(name: str, now: GetStatusResponse, then: GetStatusResponse) -> Iterator[Event]:
    mine, before = now.parameter_server.checkpoint, then.parameter_server.checkpoint
    if mine.failures > before.failures:
        yield Event("problem", f"{name} could not write its part of a checkpoint")
    if mine.saves > before.saves:
        written = f"{amount(mine.bytes)} in {span(mine.seconds)}"
        yield Event("note", f"{name} wrote its part of a checkpoint to {mine.folder}: {written}")


def _of_clients(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]
) -> Iterator[Event]:
    now, then = clients(of_clients(answers)), clients(of_clients(earlier))
    lost, known = _lost(answers), _lost(earlier)
    for name, loss in lost.items():
        if name not in known or known[name].seconds > loss.seconds:
            yield Event("problem", f"{name} is gone: {loss.why}")
    # A server that does not answer says nothing of its clients.
    if all(each.status for each in answers if not each.place.optional):
        yield from _named("came", now.keys() - then.keys())
        yield from _named("left", then.keys() - now.keys() - lost.keys())


def _named(verb: str, names: Collection[str]) -> Iterator[Event]:
    if names:
        few = len(names) <= _MOST_NAMES
        yield Event(
            "note", f"{', '.join(sorted(names)) if few else f'{len(names)} clients'} {verb}"
        )


def _lost(answers: Sequence[ServerAnswer]) -> Mapping[str, LostClient]:
    return {
        f"{loss.task.job}:{loss.task.index}": loss
        for _, status in statuses(answers)
        for loss in sorted(status.lost, key=lambda each: -each.seconds)
    }


def stalls(found: Sequence[Finding], before: Sequence[Finding]) -> Iterator[Event]:
    """Yield who began to hold others up, and who ended to."""
    now, then = _culprits(found), _culprits(before)
    for culprits, what in now.items():
        if culprits not in then:
            yield Event("problem", f"stalled: {what}")
    for culprits in then:
        if culprits not in now:
            yield Event("change", f"{', '.join(culprits)}: holds nobody up any more")


def _culprits(found: Sequence[Finding]) -> Mapping[tuple[str, ...], str]:
    return {tuple(each.culprits): each.what for each in found if each.stalls}
