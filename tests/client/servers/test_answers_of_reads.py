"""Values that are read arrive, however the server describes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem._ps_client.requests.reads import Reading, read
from stratagem._ps_client.transport import Responses
from stratagem_proto.errors import FailedPreconditionError, MalformedStreamError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_INT32
from stratagem_proto.wire.frames import encode_frame, split
from stratagem_proto.wire.tensors import spec_of

SENT = [torch.full((2,), 1.0), torch.full((2,), 2.0), torch.full((3,), 3.0)]
VERSIONS = [4, 5, 6]


def contents_of(places: list[int | None], sent: list[torch.Tensor]) -> pb.ReadContents:
    values = [pb.ReadValue(tensor=place) for place in places]
    return pb.ReadContents(values=values, tensors=map(spec_of, sent))


def answer(contents: bytes, sent: list[torch.Tensor], versions: list[int]) -> Responses:
    header = pb.ReadHeader(versions=versions, contents=contents)
    return Responses(map(encode_frame, split(header, sent)))


def taken(responses: Responses) -> tuple[list[int], list[list[float]]]:
    """The versions and values of three variables, which were zeros."""
    into = [torch.zeros_like(value) for value in SENT]
    request = read([Reading(name, each) for name, each in zip("abc", into, strict=True)])
    return request.receive(responses), [each.tolist() for each in into]


@given(order=st.permutations(range(3)), unchanged=st.sets(st.integers(0, 2)))
def test_values_are_told_apart_by_what_the_server_says(
    order: list[int], unchanged: set[int]
) -> None:
    coming = [index for index in order if index not in unchanged]
    sent = [SENT[index] for index in coming]
    places = [coming.index(i) if i in coming else None for i in range(3)]
    contents = contents_of(places, sent).SerializeToString()
    versions, values = taken(answer(contents, sent, VERSIONS))
    assert versions == VERSIONS
    assert values == [
        [0.0] * len(value) if index in unchanged else value.tolist()
        for index, value in enumerate(SENT)
    ]


def swapped(contents: pb.ReadContents) -> None:
    contents.values[0].tensor, contents.values[2].tensor = 2, 0


def as_integers(contents: pb.ReadContents) -> None:
    contents.tensors[1].dtype = DATA_TYPE_INT32


def reshaped(contents: pb.ReadContents) -> None:
    contents.tensors[1].shape[:] = [1, 2]


@pytest.mark.parametrize("change", [swapped, as_integers, reshaped])
def test_other_variables_than_those_known_are_refused(change: Any) -> None:
    contents = contents_of([0, 1, 2], SENT)
    change(contents)
    responses = answer(contents.SerializeToString(), SENT, VERSIONS)
    with pytest.raises(FailedPreconditionError, match="was deleted and created anew"):
        taken(responses)


@pytest.mark.parametrize(
    ("contents", "versions", "problem"),
    [
        (contents_of([0, 1, 2], SENT), VERSIONS[:2], "2 versions came where 3 were"),
        (contents_of([0, 1], SENT[:2]), VERSIONS, "2 values came where 3 were"),
        (contents_of([0, 1, None], SENT), VERSIONS, "its values point to 2"),
    ],
    ids=["versions", "values", "tensors"],
)
def test_an_answer_to_something_else_is_refused(
    contents: pb.ReadContents, versions: list[int], problem: str
) -> None:
    with pytest.raises(MalformedStreamError, match=problem):
        taken(answer(contents.SerializeToString(), SENT, versions))


@given(contents=st.binary(max_size=8))
def test_bytes_that_say_nothing_are_refused(contents: bytes) -> None:
    with pytest.raises(MalformedStreamError):
        taken(answer(contents, SENT, VERSIONS))
