"""Where functions run."""

from __future__ import annotations

from stratagem.coordinator import (
    experimental_get_current_worker_index,
)
from tests.client.coordinator.coordination import Coordination
from tests.client.coordinator.here import Gate


def where() -> int:
    return experimental_get_current_worker_index()


def gone_through(gate: Gate) -> int:
    gate.pass_through()
    return where()


def ran_on_each(coordination: Coordination, count: int) -> set[int]:
    """The workers on which functions run that need as many at the same time."""
    gate = Gate()
    coordinator = coordination.coordinator
    values = [coordinator.schedule(gone_through, args=(gate,)) for _ in range(count)]
    gate.wait_for(count)
    gate.open()
    return set(coordinator.fetch(values))
