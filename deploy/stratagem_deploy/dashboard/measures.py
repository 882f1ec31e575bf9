"""The numbers that curves show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import median

from stratagem_deploy.dashboard.curves import Measures
from stratagem_deploy.watching.amounts import mean
from stratagem_deploy.watching.asking import ServerAnswer, of_clients
from stratagem_deploy.watching.calls import calls_of, seconds_between
from stratagem_deploy.watching.diagnosis.clients import session_name
from stratagem_deploy.watching.rows import progress_of
from stratagem_proto.v1.status_pb2 import MethodStatus

# More curves than these cannot be told apart.
_MOST_CURVES = 8


def measures(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer]) -> Measures:
    """Return the numbers of the time between two looks."""
    rates = {each.label: Rates(each, earlier) for each in answers if each.status}
    stores = [each for each in of_clients(answers) if each.status and _stores(each)]
    found = {
        "steps": steps_by_worker(answers, earlier),
        "received": {label: rate.received for label, rate in rates.items()},
        "sent": {label: rate.sent for label, rate in rates.items()},
        "update": {
            label: seconds for label, rate in rates.items() if (seconds := rate.mean_of("Update"))
        },
        "waiting": {each.label: float(_waiting(each)) for each in stores},
        "held": {each.label: float(held_bytes(each)) for each in stores},
    }
    found |= _scalars(of_clients(answers))
    return {chart: _of_few(series) for chart, series in found.items() if series}


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
    """Return how many steps each worker takes by the second, under all its optimizers."""
    found = defaultdict[str, float](float)
    for one in progress_of(of_clients(answers), of_clients(earlier)):
        if not one.clock.gone:
            found[one.worker] += one.by_the_second or 0.0
    return found


class Rates:
    """What a server did between two looks, by the second.

    Args:
        answer: What it says now.
        earlier: What all said before.

    Attributes:
        received: Bytes of tensors that it received.
        sent: Bytes of tensors that it sent.
        calls: Calls that ended.
    """

    def __init__(self, answer: ServerAnswer, earlier: Sequence[ServerAnswer]) -> None:
        self._methods = calls_of([answer], earlier)
        seconds = seconds_between([answer], earlier)
        methods: Sequence[MethodStatus] = [*self._methods.values()]
        self.received = sum(one.received_bytes.sum for one in methods) / seconds
        self.sent = sum(one.sent_bytes.sum for one in methods) / seconds
        self.calls = sum(sum(one.ended.values()) for one in methods) / seconds

    def mean_of(self, method: str) -> float | None:
        """Return how many seconds its calls of a method took on average; None without calls."""
        found = self._methods.get(method)
        return mean(found.seconds) if found else None


def held_bytes(answer: ServerAnswer) -> int:
    """Return the memory of the variables of a server that answered."""
    return sum(one.bytes for one in answer.status.parameter_server.totals) if answer.status else 0


def _waiting(answer: ServerAnswer) -> int:
    return sum(one.waiting for one in answer.status.parameter_server.waits) if answer.status else 0


def _stores(answer: ServerAnswer) -> bool:
    return answer.status is not None and answer.status.HasField("parameter_server")


def _of_few(series: Mapping[str, float]) -> Mapping[str, float]:
    if len(series) <= _MOST_CURVES:
        return series
    values = [*series.values()]
    return {"most": max(values), "median": median(values), "least": min(values)}
