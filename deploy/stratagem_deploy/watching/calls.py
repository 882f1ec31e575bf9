"""The calls of several servers, added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratagem_deploy.watching.asking import ServerAnswer
from stratagem_proto.v1.status_pb2 import Histogram, MethodStatus


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
    _add_histogram(summed.seconds, method.seconds, sign)
    _add_histogram(summed.received_bytes, method.received_bytes, sign)
    _add_histogram(summed.sent_bytes, method.sent_bytes, sign)


def _add_histogram(mine: Histogram, other: Histogram, sign: int) -> None:
    if not other.counts:
        return
    if not mine.counts:
        mine.bounds[:], mine.counts[:] = other.bounds, [0] * len(other.counts)
    pairs = zip(mine.counts, other.counts, strict=True)
    mine.counts[:] = [a + sign * b for a, b in pairs]
    mine.sum += sign * other.sum


def seconds_between(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> float:
    """Return the seconds between two looks.

    They are those of the clock of a server that answered both, since a look may have waited for
    servers that do not answer. Without one, they are those of this process.
    """
    before = {each.status.incarnation: each.status for each in earlier if each.status}
    for answer in answers:
        if answer.status and (known := before.get(answer.status.incarnation)):
            return answer.status.uptime_seconds - known.uptime_seconds or 1.0
    return (answers[0].time - earlier[0].time if answers and earlier else 0.0) or 1.0
