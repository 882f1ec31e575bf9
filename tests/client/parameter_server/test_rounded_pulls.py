"""Parameters that are rounded on their way to a training step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import (
    DistributedOptimizer,
    InvalidArgumentError,
    Variable,
)
from stratagem._ps_client.requests.reads import Reading, read
from stratagem._ps_client.transport import Responses
from stratagem.nn import prefetch
from stratagem.partitioners import FixedShardsPartitioner
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import (
    ENCODING_KIND_NARROWED,
    ENCODING_KIND_QUANTIZED,
    Encoding,
)
from stratagem_proto.wire.encodings import narrow
from stratagem_proto.wire.frames import Frame, encode_frame
from stratagem_proto.wire.tensors import spec_of
from tests.client.clusters import Cluster

ROWS = torch.arange(50)


class Model(nn.Module):
    """A matrix, a table, and what nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(40, 30))
        self.table = nn.Embedding(len(ROWS), 20, sparse=True)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)


class Pair:
    """A chief that writes values, and a worker that finds them rounded."""

    def __init__(self, cluster: Cluster, **settings: Any) -> None:
        self.chief = cluster.strategy(0, **settings)
        self.worker = cluster.strategy(1, pull_dtype=torch.bfloat16, **settings)
        with self.chief.scope():
            self.written = Model()
        with self.worker.scope():
            self.model = Model()

    def write(self) -> None:
        """Lets the worker have nothing but values of before."""
        with torch.no_grad():
            self.written.matrix.add_(1)
        self.chief.refresh()

    def seen(self) -> dict[str, torch.Tensor]:
        """What a step of the worker works with."""

        def step() -> dict[str, torch.Tensor]:
            model = self.model
            found = model.matrix, model.frozen, model.table(ROWS)
            names = "matrix", "frozen", "table"
            copies = (one.detach().clone() for one in found)
            return dict(zip(names, copies, strict=True))

        result: dict[str, torch.Tensor] = self.worker.run(step)
        return result

    def exact(self) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.written.state_dict()
        state["table"] = state.pop("table.weight")
        return state


@pytest.fixture
def pair(cluster: Cluster) -> Iterator[Pair]:
    pair = Pair(cluster)
    with pair.chief, pair.worker:
        yield pair


def rounded(value: torch.Tensor) -> torch.Tensor:
    result = value.to(torch.bfloat16).float()
    assert not torch.equal(result, value)
    return result


@pytest.mark.parametrize("shards", [1, 2])
def test_steps_find_rounded_values_of_what_is_trained(cluster: Cluster, shards: int) -> None:
    pair = Pair(cluster, variable_partitioner=FixedShardsPartitioner(shards))
    with pair.chief, pair.worker:
        pair.write()
        seen, exact = pair.seen(), pair.exact()
    for name in ("matrix", "table"):
        assert torch.equal(seen[name], rounded(exact[name]))
    assert torch.equal(seen["frozen"], exact["frozen"])


def test_rows_that_are_pulled_before_are_rounded_too(pair: Pair) -> None:
    def step() -> Any:
        prefetch([(pair.model.table, ROWS)])
        return pair.model.table(ROWS).detach()

    found: torch.Tensor = pair.worker.run(step)
    assert torch.equal(found, rounded(pair.exact()["table"]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_servers_step_exact_values(cluster: Cluster, dtype: torch.dtype) -> None:
    with cluster.strategy(pull_dtype=dtype) as strategy:
        with strategy.scope():
            model = Model()
        start = model.table(ROWS).detach()
        sgd = torch.optim.SGD(model.table.parameters(), lr=0.5)
        optimizer = DistributedOptimizer(sgd)

        def step() -> None:
            optimizer.zero_grad()
            # The gradient of a row is what it looks like here.
            (model.table(ROWS).square().sum() / 2).backward()
            optimizer.step()

        strategy.run(step)
        expected = start - 0.5 * start.to(dtype).float()
        assert torch.equal(model.state_dict()["table.weight"], expected)


def evaluating(pair: Pair, how: str) -> AbstractContextManager[Any]:
    return pair.worker.snapshot() if how == "snapshot" else torch.no_grad()


@pytest.mark.parametrize("how", ["snapshot", "no_grad"])
def test_evaluation_finds_exact_values(pair: Pair, how: str) -> None:
    pair.write()
    pair.seen()
    with evaluating(pair, how):
        seen = pair.seen()
    assert all(torch.equal(seen[name], value) for name, value in pair.exact().items())


def test_state_dicts_have_exact_values(pair: Pair) -> None:
    pair.write()
    pair.seen()
    assert torch.equal(pair.model.state_dict()["matrix"], pair.exact()["matrix"])


def test_refreshed_parameters_are_exact_and_stay_so_until_there_are_newer_ones(
    pair: Pair,
) -> None:
    pair.write()
    pair.seen()
    pair.worker.refresh()
    exact = pair.exact()
    assert torch.equal(pair.model.matrix, exact["matrix"])
    assert torch.equal(pair.seen()["matrix"], exact["matrix"])
    pair.write()
    assert torch.equal(pair.seen()["matrix"], rounded(pair.exact()["matrix"]))


def test_variables_that_are_not_trained_are_never_rounded(cluster: Cluster) -> None:
    with cluster.strategy(pull_dtype=torch.bfloat16) as strategy:
        with strategy.scope():
            integers = Variable(torch.arange(300), name="integers")
            mean = Variable(torch.tensor(0.1), trainable=False, name="mean")
            weight = Variable(torch.tensor(0.1), name="weight")
        for variable in (integers, mean, weight):
            variable.assign(variable + 1)
        found = strategy.run(
            lambda: [one.value().detach().clone() for one in (integers, mean, weight)]
        )
        assert torch.equal(found[0], torch.arange(300) + 1)
        assert found[1] == torch.tensor(0.1) + 1
        assert weight.numpy() == found[1]


def test_it_takes_half_the_bytes(pair: Pair) -> None:
    received = {}
    for name, strategy in (("exact", pair.chief), ("rounded", pair.worker)):
        model = pair.written if strategy is pair.chief else pair.model
        before = strategy.traffic()
        strategy.run(lambda model=model: model.table(ROWS).sum().item())
        received[name] = (strategy.traffic() - before).received_bytes
    overhead = 500
    assert received["exact"] > 4 * 50 * 20
    assert received["rounded"] < received["exact"] / 2 + overhead


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, "bf16"])
def test_other_types_are_refused(cluster: Cluster, dtype: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"pull_dtype is torch\.bfloat16 or"):
        cluster.strategy(pull_dtype=dtype)


def answer(sent: torch.Tensor, encoding: Encoding) -> Responses:
    value = pb.ReadValue(tensor=0, encoding=encoding)
    contents = pb.ReadContents(values=[value], tensors=[spec_of(sent)])
    header = pb.ReadHeader(versions=[1], contents=contents.SerializeToString())
    return Responses(iter([encode_frame(Frame(header))]))


VALUE = torch.ones(3)


@pytest.mark.parametrize(
    ("asked", "sent", "kind"),
    [
        (None, VALUE.bfloat16(), ENCODING_KIND_NARROWED),
        (torch.float16, VALUE.bfloat16(), ENCODING_KIND_NARROWED),
        (torch.bfloat16, VALUE[:2].bfloat16(), ENCODING_KIND_NARROWED),
        (torch.bfloat16, VALUE.bfloat16(), ENCODING_KIND_QUANTIZED),
    ],
    ids=["not asked", "another type", "another shape", "another kind"],
)
def test_an_encoding_that_was_not_asked_for_is_refused(
    asked: torch.dtype | None, sent: torch.Tensor, kind: Any
) -> None:
    request = read([Reading("v", torch.zeros(3), narrowed_to=asked)])
    encoding = Encoding(decoded=spec_of(VALUE), kind=kind)
    with pytest.raises(MalformedStreamError, match="'v' was sent in an encoding"):
        request.receive(answer(sent, encoding))


def test_what_was_narrowed_must_still_be_the_variable(cluster: Cluster) -> None:
    request = read([Reading("v", torch.zeros(4), narrowed_to=torch.bfloat16)])
    sent = narrow(VALUE, torch.bfloat16)
    encoding = Encoding(decoded=spec_of(VALUE), kind=sent.kind)
    with pytest.raises(Exception, match="was deleted and created anew"):
        request.receive(answer(sent.tensor, encoding))
