"""Gradients that reach a server encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from stratagem_proto.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    ResourceExhaustedError,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_FLOAT32, Encoding, TensorSpec
from stratagem_proto.v1.update_program_pb2 import REDUCTION_MEAN, UpdateProgram
from stratagem_proto.wire.encodings import Encoded, decode, narrow, quantize, select
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.psserver.wire import LARGE, RawClient, encoded, sgd

pytestmark = pytest.mark.plain_servers_too

NAME = "dense.weight"
GRADIENT = torch.tensor([[1.0, -2.0, 0.25], [0.0, 100.0, -7.0]])
HOW = {
    "narrowed to float16": narrow(GRADIENT, torch.float16),
    "narrowed to bfloat16": narrow(GRADIENT, torch.bfloat16),
    "quantized by row": quantize(GRADIENT, by_row=True),
    "quantized as one": quantize(GRADIENT, by_row=False),
    "selected": select(GRADIENT, 2),
}


def message(
    client: RawClient,
    gradient: Encoded,
    name: str = NAME,
    rows: Sequence[int] | None = None,
) -> tuple[pb.UpdateHeader, list[torch.Tensor]]:
    """A request to subtract a gradient."""
    tensors = [gradient.tensor]
    encoding = Encoding(decoded=gradient.decoded, kind=gradient.kind)
    reference = pb.GradientRef(variable=name, tensor=0)
    if gradient.companion is not None:
        encoding.companion = len(tensors)
        tensors.append(gradient.companion)
    if rows is not None:
        reference.rows = len(tensors)
        tensors.append(torch.tensor(rows))
    reference.encoding.CopyFrom(encoding)
    header = pb.UpdateHeader(
        key=client.key(),
        program=UpdateProgram(optimizer=sgd()),
        gradients=[reference],
        tensors=map(spec_of, tensors),
    )
    return header, tensors


def send(
    client: RawClient, header: pb.UpdateHeader, tensors: Sequence[torch.Tensor]
) -> pb.UpdateResponse:
    return client.upload("Update", encoded(header, tensors), pb.UpdateResponse)


@pytest.mark.parametrize("how", HOW)
def test_it_is_applied_as_decoded(client: RawClient, how: str) -> None:
    (before,) = client.read(NAME)
    send(client, *message(client, HOW[how]))
    (after,) = client.read(NAME)
    assert torch.equal(after, before - decode(HOW[how]))


@pytest.mark.parametrize("gradient", ["narrow", "quantize", "select"])
def test_a_large_one_is_applied_as_decoded(client: RawClient, gradient: str) -> None:
    value = torch.randn(LARGE, generator=torch.Generator().manual_seed(0))
    how = {
        "narrow": narrow(value, torch.bfloat16),
        "quantize": quantize(value, by_row=True),
        "select": select(value, LARGE // 100),
    }[gradient]
    send(client, *message(client, how, "big"))
    (after,) = client.read("big")
    assert torch.equal(after, 1 - decode(how))


def test_the_values_of_rows_may_be_encoded(client: RawClient) -> None:
    values = quantize(torch.tensor([[1.0, 2.0, 3.0]]), by_row=True)
    send(client, *message(client, values, rows=[1]))
    (after,) = client.read(NAME)
    assert torch.equal(after, torch.stack([torch.ones(3), 1 - decode(values)[0]]))


def test_it_is_staged_decoded_and_added_to_other_contributions(
    client: RawClient,
) -> None:
    header, tensors = message(client, HOW["selected"])
    mark = pb.StepMark(group="SGD", step=1)
    header.contribution.CopyFrom(
        pb.Contribution(step=mark, num_workers=1, replicas=2, reduction=REDUCTION_MEAN)
    )
    send(client, header, tensors)
    request = pb.CommitContributionRequest(key=client.key(), step=mark)
    client.unary("CommitContribution", request, pb.CommitContributionResponse)
    (after,) = client.read(NAME)
    assert torch.equal(after, 1 - decode(HOW["selected"]) / 2)


def test_a_repeated_request_is_applied_once(client: RawClient) -> None:
    header, tensors = message(client, HOW["selected"])
    assert send(client, header, tensors) == send(client, header, tensors)
    (after,) = client.read(NAME)
    assert torch.equal(after, 1 - decode(HOW["selected"]))


SELECTED = HOW["selected"]
LEVELS = HOW["quantized by row"]
WRONG: dict[str, tuple[Encoded, type[Exception]]] = {
    "a place beyond the end": (
        replace(SELECTED, companion=torch.tensor([4, 6])),
        InvalidArgumentError,
    ),
    "a place twice": (
        replace(SELECTED, companion=torch.tensor([4, 4])),
        InvalidArgumentError,
    ),
    "a scale that is no number": (
        replace(LEVELS, companion=torch.tensor([1.0, float("nan")])),
        InvalidArgumentError,
    ),
    "another shape than the variable's": (
        narrow(GRADIENT.T, torch.float16),
        InvalidArgumentError,
    ),
    "another dtype than the variable's": (
        narrow(GRADIENT.double(), torch.float16),
        InvalidTypeError,
    ),
    "a negative size": (
        replace(SELECTED, decoded=TensorSpec(dtype=DATA_TYPE_FLOAT32, shape=[-2, -3])),
        InvalidArgumentError,
    ),
    "more bytes than the server has": (
        replace(SELECTED, decoded=TensorSpec(dtype=DATA_TYPE_FLOAT32, shape=[1 << 50])),
        ResourceExhaustedError,
    ),
    "more bytes than there are": (
        replace(SELECTED, decoded=TensorSpec(dtype=DATA_TYPE_FLOAT32, shape=[1 << 40] * 2)),
        InvalidArgumentError,
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_not_as_it_claims_changes_nothing(client: RawClient, wrong: str) -> None:
    before = client.everything()
    gradient, error = WRONG[wrong]
    header, tensors = message(client, gradient)
    with pytest.raises(error):
        send(client, header, tensors)
    assert client.everything() == before
    if error is ResourceExhaustedError:
        client.sequence -= 1  # a request that may fare better keeps its number
    send(client, *message(client, SELECTED))


def test_the_refusal_names_the_variable(client: RawClient) -> None:
    gradient = replace(SELECTED, companion=torch.tensor([4, 6]))
    with pytest.raises(InvalidArgumentError, match="a place is not within") as caught:
        send(client, *message(client, gradient))
    assert caught.value.variable == NAME


def test_places_that_do_not_come_along_are_refused(client: RawClient) -> None:
    header, tensors = message(client, SELECTED)
    header.gradients[0].encoding.companion = 2
    with pytest.raises(InvalidArgumentError, match="it names tensor 2 of 2"):
        send(client, header, tensors)


def test_two_gradients_do_not_share_an_encoded_tensor(client: RawClient) -> None:
    client.create(other=torch.ones(2, 3))
    header, tensors = message(client, SELECTED)
    header.gradients.add(variable="other", tensor=0)
    before = client.everything()
    with pytest.raises(InvalidArgumentError, match="that of another gradient"):
        send(client, header, tensors)
    assert client.everything() == before


def test_the_budget_counts_what_is_decoded() -> None:
    size = 1000
    settings = ServerSettings(token=TOKEN, staged_bytes=(size * 4 + 100) * 4 // 3)
    with (
        ParameterServer(settings) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        client.open()
        client.create(v=torch.ones(size))
        send(client, *message(client, select(torch.ones(size), 5), "v"))
        with pytest.raises(ResourceExhaustedError, match=f"needs {size * 4 + 160}"):
            send(client, *message(client, select(torch.ones(size), 20), "v"))
