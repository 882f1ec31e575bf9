"""What the page shows of a look, as JSON has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from stratagem_deploy.dashboard.measures import Rates, held_bytes, steps_by_worker
from stratagem_deploy.dashboard.picture import picture
from stratagem_deploy.watching.amounts import amount
from stratagem_deploy.watching.asking import ServerAnswer, of_clients
from stratagem_deploy.watching.diagnosis.clients import clients
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_deploy.watching.rows import (
    call_rows,
    checkpoint_rows,
    client_rows,
    exposure,
    server_rows,
    step_rows,
    wait_rows,
)


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
