"""Telling a server which scheduled functions have ended."""

from __future__ import annotations

from collections.abc import Iterable

from stratagem._ps_client.requests.request import Request, sole
from stratagem_proto.v1.closure_pb2 import EndClosuresRequest, EndClosuresResponse


def end_closures(
    space: bytes, through: int, unended: Iterable[int]
) -> Request[EndClosuresResponse]:
    """The request that has a server forget functions, and refuse what comes of them.

    Args:
        space: Names the coordinator.
        through: All functions up to this number have ended,
        unended: but for those of these numbers.
    """
    message = EndClosuresRequest(space=space, through=through, unended=unended)
    return Request("EndClosures", message, sole(EndClosuresResponse))
