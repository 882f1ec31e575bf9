"""Asking a server for a permit: to take a step, or to pass a barrier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratagem._ps_client.requests.request import Request, sole
from stratagem_proto.v1.barrier_pb2 import BarrierRequest, BarrierResponse
from stratagem_proto.v1.consistency_pb2 import (
    BeginStepRequest,
    BeginStepResponse,
    Consistency,
    DescribeConsistencyRequest,
    DescribeConsistencyResponse,
    GroupConsistency,
    SetConsistencyRequest,
    SetConsistencyResponse,
    StepBegin,
    StepGrant,
)


def begin(steps: Sequence[StepBegin], wait: float) -> Request[list[StepGrant]]:
    """Return the request for permits to take steps, one of each group.

    Args:
        steps: Where this worker is in each group.
        wait: For how long to wait for slower workers, in seconds.
    """
    message = BeginStepRequest(steps=steps, wait_seconds=wait)
    awaits = "workers that are behind" if wait else ""
    return Request("BeginStep", message, _granted, wait=wait, awaits=awaits)


def change(group: str, consistency: Consistency) -> Request[SetConsistencyResponse]:
    """Return the request that changes a group's consistency."""
    message = SetConsistencyRequest(group=group, consistency=consistency)
    return Request("SetConsistency", message, sole(SetConsistencyResponse))


def describe() -> Request[list[GroupConsistency]]:
    """Return the request for what holds in each group, and how its workers fare."""
    return Request("DescribeConsistency", DescribeConsistencyRequest(), _described)


def _granted(responses: Iterator[bytes]) -> list[StepGrant]:
    return list(sole(BeginStepResponse)(responses).grants)


def _described(responses: Iterator[bytes]) -> list[GroupConsistency]:
    return list(sole(DescribeConsistencyResponse)(responses).groups)


def barrier(name: str, generation: int, num_tasks: int, wait: float) -> Request[BarrierResponse]:
    """Return the request that ends once all tasks have sent it.

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
