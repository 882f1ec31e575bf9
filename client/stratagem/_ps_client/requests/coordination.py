"""What tasks ask a server to agree on: steps, barriers, batches, ended functions, coordinators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stratagem._ps_client.requests.request import Request, sole
from stratagem._ps_client.transport import Responses
from stratagem_proto.v1.barrier_pb2 import BarrierRequest, BarrierResponse, GroupForming
from stratagem_proto.v1.closure_pb2 import EndClosuresRequest, EndClosuresResponse
from stratagem_proto.v1.consistency_pb2 import (
    BeginStepRequest,
    BeginStepResponse,
    CommittedStep,
    Consistency,
    DescribeConsistencyRequest,
    DescribeConsistencyResponse,
    GroupConsistency,
    InputDigest,
    SetConsistencyRequest,
    SetConsistencyResponse,
    StepBegin,
    StepGrant,
)
from stratagem_proto.v1.draws_pb2 import (
    DrawBatchRequest,
    DrawBatchResponse,
    OpenPassRequest,
    OpenPassResponse,
)
from stratagem_proto.v1.succession_pb2 import (
    AwaitVacancyRequest,
    AwaitVacancyResponse,
    Incumbent,
    SucceedRequest,
    SucceedResponse,
)


def begin(
    steps: Sequence[StepBegin], wait: float, inputs: Sequence[InputDigest] = ()
) -> Request[list[StepGrant]]:
    """Return the request for permits to take steps, one of each group.

    The server waits up to `wait` seconds for slower workers. It compares the inputs with those of
    other workers.
    """
    message = BeginStepRequest(steps=steps, wait_seconds=wait, inputs=inputs)
    awaits = "workers that are behind" if wait else ""
    return Request("BeginStep", message, _granted, wait=wait, awaits=awaits)


def change(group: str, consistency: Consistency) -> Request[SetConsistencyResponse]:
    """Return the request that changes a group's consistency."""
    message = SetConsistencyRequest(group=group, consistency=consistency)
    return Request("SetConsistency", message, sole(SetConsistencyResponse))


def describe() -> Request[list[GroupConsistency]]:
    """Return the request for what holds in each group, and how its workers fare."""
    return Request("DescribeConsistency", DescribeConsistencyRequest(), _described)


def list_committed() -> Request[list[CommittedStep]]:
    """Return the request for the newest steps to which workers have committed on a server."""
    return Request("DescribeConsistency", DescribeConsistencyRequest(), _committed)


def _granted(responses: Responses) -> list[StepGrant]:
    return list(sole(BeginStepResponse)(responses).grants)


def _described(responses: Responses) -> list[GroupConsistency]:
    return list(sole(DescribeConsistencyResponse)(responses).groups)


def _committed(responses: Responses) -> list[CommittedStep]:
    return list(sole(DescribeConsistencyResponse)(responses).committed)


def barrier(name: str, generation: int, num_tasks: int, wait: float) -> Request[BarrierResponse]:
    """Return the request that ends once all tasks have sent it, or after `wait` seconds.

    The generation is how often this program has passed the barrier before.
    """
    message = BarrierRequest(
        name=name, generation=generation, num_tasks=num_tasks, wait_seconds=wait
    )
    awaits = f"the other workers at the barrier {name!r}"
    return Request("Barrier", message, sole(BarrierResponse), wait=wait, awaits=awaits)


def form_group(
    name: str, forming: GroupForming, num_tasks: int, wait: float
) -> Request[BarrierResponse]:
    """Return the request for the next generation of a group, or for a look at the latest one.

    The first generation is formed of `num_tasks`.
    """
    message = BarrierRequest(name=name, forming=forming, num_tasks=num_tasks, wait_seconds=wait)
    awaits = "the other workers of the group" if wait else ""
    return Request("Barrier", message, sole(BarrierResponse), wait=wait, awaits=awaits)


@dataclass(frozen=True)
class DataPass:
    """A pass over the data of a ledger, by its number from 0 and the seed of all passes."""

    ledger: str
    number: int
    seed: int


def open_pass(
    ledger: str, num_batches: int, seed: int, coordinator: bytes
) -> Request[OpenPassResponse]:
    """Return the request that begins a pass, or continues another coordinator's.

    A pass has `num_batches`, which the seed shuffles if it is the first one. The functions that
    draw are of the coordinator's space.
    """
    message = OpenPassRequest(
        ledger=ledger, num_batches=num_batches, seed=seed, coordinator=coordinator
    )
    return Request("OpenPass", message, sole(OpenPassResponse))


def draw_batch(opened: DataPass, num_batches: int, order: int = 0) -> Request[int | None]:
    """Return the request for the number of the next batch; None if there is none left.

    The data have `num_batches` here, in an order of this digest; 0 is that of their numbers.
    """
    message = DrawBatchRequest(
        ledger=opened.ledger, number=opened.number, num_batches=num_batches, order=order
    )
    return Request("DrawBatch", message, _drawn)


def _drawn(responses: Responses) -> int | None:
    response = sole(DrawBatchResponse)(responses)
    return response.batch if response.HasField("batch") else None


def end_closures(
    space: bytes, through: int, unended: Iterable[int]
) -> Request[EndClosuresResponse]:
    """Return the request that has a server forget functions and refuse their writes.

    All functions of the coordinator's space up to the number `through` have ended, but for those
    that are `unended`.
    """
    message = EndClosuresRequest(space=space, through=through, unended=unended)
    return Request("EndClosures", message, sole(EndClosuresResponse))


def await_vacancy(program: bytes, wait: float) -> Request[AwaitVacancyResponse]:
    """Return the request that ends once a program can coordinate, or after `wait` seconds."""
    message = AwaitVacancyRequest(program=program, wait_seconds=wait)
    awaits = "the end of the program that coordinates" if wait else ""
    return Request("AwaitVacancy", message, sole(AwaitVacancyResponse), wait=wait, awaits=awaits)


def succeed(incumbent: Incumbent) -> Request[SucceedResponse]:
    """Return the request that gives a program the place, or gives the place up."""
    return Request("Succeed", SucceedRequest(incumbent=incumbent), sole(SucceedResponse))
