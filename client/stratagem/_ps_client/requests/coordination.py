"""What a coordinator asks of servers: who reads which batch, which functions ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stratagem._ps_client.requests.request import Request, sole
from stratagem_proto.v1.closure_pb2 import EndClosuresRequest, EndClosuresResponse
from stratagem_proto.v1.draws_pb2 import (
    DrawBatchRequest,
    DrawBatchResponse,
    OpenPassRequest,
    OpenPassResponse,
)


@dataclass(frozen=True)
class DataPass:
    """One pass over data.

    Attributes:
        ledger: Name of the data.
        number: Its number, from 0.
        seed: By which all passes are shuffled.
    """

    ledger: str
    number: int
    seed: int


def open_pass(
    ledger: str, num_batches: int, seed: int, coordinator: bytes
) -> Request[OpenPassResponse]:
    """Return the request that begins a pass, or continues another coordinator's.

    Args:
        ledger: Name of the data.
        num_batches: How many batches a pass has.
        seed: By which they are shuffled, if this is the first pass.
        coordinator: Space of the functions that will draw.
    """
    message = OpenPassRequest(
        ledger=ledger, num_batches=num_batches, seed=seed, coordinator=coordinator
    )
    return Request("OpenPass", message, sole(OpenPassResponse))


def draw_batch(opened: DataPass, num_batches: int) -> Request[int | None]:
    """Return the request for the number of the next batch; None if there is none left.

    Args:
        opened: The pass.
        num_batches: How many batches the data have here.
    """
    message = DrawBatchRequest(ledger=opened.ledger, number=opened.number, num_batches=num_batches)
    return Request("DrawBatch", message, _drawn)


def _drawn(responses: Iterator[bytes]) -> int | None:
    response = sole(DrawBatchResponse)(responses)
    return response.batch if response.HasField("batch") else None


def end_closures(
    space: bytes, through: int, unended: Iterable[int]
) -> Request[EndClosuresResponse]:
    """Return the request that has a server forget functions and refuse their writes.

    Args:
        space: Names the coordinator.
        through: All functions up to this number have ended,
        unended: but for those of these numbers.
    """
    message = EndClosuresRequest(space=space, through=through, unended=unended)
    return Request("EndClosures", message, sole(EndClosuresResponse))
