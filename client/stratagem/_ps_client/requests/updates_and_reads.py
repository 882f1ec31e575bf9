"""Updates whose answer has the values that the next step needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from stratagem._ps_client.requests.reading import Reading, ReadsAfterUpdate
from stratagem._ps_client.requests.reads import filled
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.transports.call import Responses
from stratagem_proto.v1.consistency_pb2 import StepBegin, StepGrant
from stratagem_proto.v1.parameter_server_pb2 import ReadHeader, UpdateAndReadHeader, UpdateHeader
from stratagem_proto.wire.placed import SegmentLayout


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        versions: Of what was read, one for each reading.
        grants: Permits for the steps that were begun; none if one has to wait.
    """

    versions: Sequence[int]
    grants: Sequence[StepGrant]


def and_read(
    update: Request[list[int]],
    then: ReadsAfterUpdate,
    begins: Sequence[StepBegin],
    tensors: Sequence[torch.Tensor] | None = None,
) -> Request[Answer]:
    """Return the request that runs an update program, then fills the readings' tensors.

    Args:
        update: The request that only runs the program; not to be used any more.
        then: What to read of the server.
        begins: Steps to ask permits for, if that needs no waiting.
        tensors: What to send in place of the tensors of the update.
    """
    message = cast(UpdateHeader, update.message)
    message.then.begins.extend(begins)
    return Request(
        "UpdateAndRead",
        message,
        partial(_answer, then.readings, then.layout),
        update.tensors if tensors is None else tensors,
        update.rest + then.encoded,
        then.layout.nbytes,
        then.layout.room,
        update.derived_nbytes,
        layout=update.layout,
    )


def _answer(readings: Sequence[Reading], layout: SegmentLayout, responses: Responses) -> Answer:
    header, versions = filled(readings, layout, responses, UpdateAndReadHeader, _values)
    return Answer(versions, list(header.grants))


def _values(header: UpdateAndReadHeader) -> ReadHeader:
    return header.values
