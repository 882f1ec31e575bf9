"""Requests that reads send to a server."""

from __future__ import annotations

import pytest
import torch

from stratagem._ps_client.requests.reading import Reading, asked
from stratagem_proto.v1.parameter_server_pb2 import ReadRequest, Rows, Selection
from stratagem_proto.wire.tensors import encode_dtype


@pytest.mark.parametrize("count", [0, 1, 15, 16, 4096])
@pytest.mark.parametrize("newer_than", [None, 7])
@pytest.mark.parametrize("narrowed_to", [None, torch.float16])
def test_rows_are_asked_for_by_their_indices(
    count: int, newer_than: int | None, narrowed_to: torch.dtype | None
) -> None:
    rows, into = torch.arange(count), torch.empty(count, 3)

    for indices in (rows, rows.flip(0)):  # as many as before
        request = asked([Reading("table", into, newer_than, indices, narrowed_to)])

        selection = Selection(
            variable="table",
            newer_than=newer_than,
            rows=Rows(indices=indices.numpy().tobytes()),
            narrowed_to=encode_dtype(narrowed_to) if narrowed_to else None,
        )
        assert ReadRequest.FromString(request).selections == [selection]


def test_rows_are_asked_for_between_whole_variables() -> None:
    whole, rows = torch.empty(3), torch.tensor([5, 2])

    request = asked(
        [
            Reading("first", whole),
            Reading("table", torch.empty(2, 3), rows=rows),
            Reading("last", whole, newer_than=2),
        ]
    )

    assert ReadRequest.FromString(request).selections == [
        Selection(variable="first"),
        Selection(variable="table", rows=Rows(indices=rows.numpy().tobytes())),
        Selection(variable="last", newer_than=2),
    ]
