"""Waiting at a server for other tasks."""

from __future__ import annotations

from stratagem._ps_client.requests.request import Request, sole
from stratagem_proto.v1.barrier_pb2 import BarrierRequest, BarrierResponse


def barrier(
    name: str, generation: int, num_tasks: int, wait: float
) -> Request[BarrierResponse]:
    """The request that ends once all tasks have sent it.

    Args:
        name: Which barrier.
        generation: How often this program has passed it before.
        num_tasks: Number of tasks to wait for.
        wait: Longest wait in seconds.
    """
    message = BarrierRequest(
        name=name, generation=generation, num_tasks=num_tasks, wait_seconds=wait
    )
    awaits = f"the other workers at the barrier {name!r}"
    return Request("Barrier", message, sole(BarrierResponse), wait=wait, awaits=awaits)
