"""Requests that reads send to a server."""

from __future__ import annotations

import pytest
import torch

from stratagem._ps_client.requests.reads import Reading, RowsReading, read
from stratagem_proto.v1.parameter_server_pb2 import JointRows, ReadRequest, Selection
from stratagem_proto.wire.tensors import encode_dtype


@pytest.mark.parametrize("counts", [(0,), (1,), (15, 0, 16), (4096, 1)])
@pytest.mark.parametrize("narrowed_to", [None, torch.float16])
def test_rows_are_asked_for_by_their_indices(
    counts: tuple[int, ...], narrowed_to: torch.dtype | None
) -> None:
    rows = [torch.arange(count).flip(0) for count in counts]
    names = [f"table {number}" for number, _ in enumerate(counts)]
    into = torch.empty(sum(counts), 3)

    request = read([RowsReading(names, rows, into, narrowed_to)]).message

    assert isinstance(request, ReadRequest)
    expected = JointRows(
        variables=names,
        sizes=counts,
        indices=torch.cat(rows).numpy().tobytes(),
        narrowed_to=encode_dtype(narrowed_to) if narrowed_to else None,
    )
    assert list(request.joint_rows) == [expected]


def test_variables_are_asked_for_beside_rows() -> None:
    whole = torch.empty(3)

    request = read(
        [
            Reading("first", whole),
            Reading("last", whole, newer_than=2),
            RowsReading(["table"], [torch.tensor([5, 2])], torch.empty(2, 3)),
        ]
    )

    assert ReadRequest.FromString(request.rest).selections == [
        Selection(variable="first"),
        Selection(variable="last", newer_than=2),
    ]
