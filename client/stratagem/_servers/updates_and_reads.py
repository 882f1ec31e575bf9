"""Updates whose answer has the values that the next step needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from stratagem._servers.reads import Reading, decoded, fill, selections
from stratagem._servers.request import Request
from stratagem._servers.transports.call import Responses
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.frames import Frame
from stratagem_proto.placed import needed
from stratagem_proto.v1.consistency_pb2 import StepBegin, StepGrant
from stratagem_proto.v1.parameter_server_pb2 import (
    FollowingRead,
    UpdateAndReadHeader,
    UpdateHeader,
)


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        versions: Of what was read, one for each reading.
        grants: Leave for the steps that were begun; none if one has to wait.
    """

    versions: Sequence[int]
    grants: Sequence[StepGrant]


def and_read(
    update: Request[list[int]], readings: Sequence[Reading], begins: Sequence[StepBegin]
) -> Request[Answer]:
    """The request that runs an update program, then fills the readings' tensors.

    Args:
        update: The request that only runs the program.
        readings: What to read of the server.
        begins: Steps to ask leave for, if that needs no waiting.
    """
    header = UpdateHeader()
    header.CopyFrom(cast(UpdateHeader, update.message))
    header.then.CopyFrom(FollowingRead(selections=selections(readings), begins=begins))
    into = [reading.into for reading in readings]
    # Values take the place of the gradients in what is shared.
    more = max(0, needed(into) - needed(update.tensors))

    return replace(
        cast(Request[Answer], update),
        method="UpdateAndRead",
        message=header,
        receive=partial(_answer, readings),
        response_nbytes=sum(tensor.nbytes for tensor in into),
        response_room=more,
    )


def _answer(readings: Sequence[Reading], responses: Responses) -> Answer:
    frames = decoded(responses, UpdateAndReadHeader)
    first = next(frames, Frame())
    if first.header is None:
        raise MalformedStreamError("an UpdateAndRead was answered without a header")
    fill(readings, first.header.values, first, frames, responses.segment)
    versions = [value.version for value in first.header.values.values]
    return Answer(versions, list(first.header.grants))
