"""What each worker of a coordinator does once."""

from __future__ import annotations

from typing import Any

from stratagem.coordinator import (
    ClusterCoordinator,
)
from tests.client.coordinator.here import Gate


def on_each_worker(coordinator: ClusterCoordinator, fn: Any, *args: Any) -> list[Any]:
    """What a function returns on each of two workers."""
    gate = Gate()

    def meet(*args: Any) -> Any:
        gate.pass_through()
        return fn(*args)

    values = [coordinator.schedule(meet, args=args) for _ in range(2)]
    gate.wait_for(2)
    gate.open()
    return list(coordinator.fetch(values))
