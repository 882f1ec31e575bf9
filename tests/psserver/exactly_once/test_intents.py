"""Intents of mutations, in words and as a digest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from stratagem_proto.v1 import checkpoint_pb2, closure_pb2, parameter_server_service_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import InputBinding
from stratagem_proto.v1.variable_requests_pb2 import (
    AssignHeader,
    Assignment,
    DeleteVariablesRequest,
)
from stratagem_psserver.exactly_once.numbering import intent_of
from stratagem_psserver.log.changes import Mutation


def numbered() -> Iterator[Descriptor]:
    """All requests that are applied once, or their headers."""
    for file in (parameter_server_service_pb2, checkpoint_pb2, closure_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                fields = method.input_type.fields_by_name
                header = fields.get("header")
                message = header.message_type if header else method.input_type
                if "key" in message.fields_by_name:
                    yield message


def writing(*names: str) -> AssignHeader:
    return AssignHeader(assignments=[Assignment(variable=one) for one in names])


@pytest.mark.parametrize("message", [*numbered()], ids=lambda message: message.name)
def test_every_request_that_is_applied_once_has_an_intent(message: Descriptor) -> None:
    method = message.name.removesuffix("Request").removesuffix("Header")
    request = cast(Mutation, GetMessageClass(message)())
    assert intent_of(request).summary.startswith(method)


def test_variables_are_named_the_first_few() -> None:
    assert intent_of(writing("b", "a")).summary == "Assign of 'a', 'b'"
    assert intent_of(writing(*"abcde")).summary == "Assign of 'a', 'b', 'c' and 2 more"


def test_the_order_of_variables_does_not_matter_and_each_of_them_does() -> None:
    assert intent_of(writing("a", "b")) == intent_of(writing("b", "a"))
    digests = {intent_of(writing(*"abcd", last)).digest for last in "efg"}
    assert len(digests) == 3


def test_the_same_variables_are_told_apart_by_what_is_done_to_them() -> None:
    deletion = DeleteVariablesRequest(names=["a"])
    assert intent_of(writing("a")).digest != intent_of(deletion).digest


def test_an_update_is_of_what_has_a_gradient_or_is_an_input() -> None:
    header = pb.UpdateHeader(
        gradients=[pb.GradientRef(variable="w")],
        bindings=[InputBinding(variable="c"), InputBinding(tensor=0)],
    )
    assert intent_of(header).summary == "Update of 'c', 'w'"
