"""Gradients that are made smaller on their way to servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import (
    DistributedOptimizer,
    InvalidArgumentError,
    InvalidTypeError,
    ParameterServerStrategy,
)
from stratagem.compression import (
    BFloat16,
    Compression,
    Float16,
    Int8,
    TopK,
    compression_from,
)
from tests.client.clusters import Cluster, running
from tests.faults import CutAt, FaultyProxy, Verdict
from tests.full import a_few

pytestmark = pytest.mark.plain_pushes_too

STEPS = 20
SIZE = 1000


class Target(nn.Module):
    """Two vectors; the first has the shape of a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(SIZE // 10, 10))
        self.vector = nn.Parameter(torch.zeros(SIZE))


def gradients(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randn(2, SIZE, generator=generator)
    return drawn[0].reshape(SIZE // 10, 10), drawn[1]


class Worker:
    """Subtracts the gradients of one step after the other."""

    def __init__(
        self, strategy: ParameterServerStrategy, compression: Any, lr: float = 1.0
    ) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.model = Target()
        sgd = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.optimizer = DistributedOptimizer(sgd, "sum", compression=compression)

    def step(self, *own: torch.Tensor) -> None:
        def replica_step() -> None:
            for parameter, gradient in zip(self.model.parameters(), own, strict=True):
                parameter.grad = gradient.clone()
            self.optimizer.step()

        self.strategy.run(replica_step)

    def values(self) -> list[torch.Tensor]:
        self.strategy.refresh()
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def total(numbers: range) -> list[torch.Tensor]:
    """What the steps would subtract without compression."""
    columns = zip(*map(gradients, numbers), strict=True)
    return [torch.stack(each).sum(0) for each in columns]


@a_few(
    "compression,share",
    [
        ("bf16", 0.5),
        ("fp16", 0.5),
        ("int8", 0.32),
        ("int4", 0.2),
        (Int8(False), 0.26),
        (TopK(0.01), 0.03),
    ],
    "the encodings have tests of their own in tests/proto",
    2,
    ids=str,
)
def test_it_takes_fewer_bytes(cluster: Cluster, compression: Any, share: float) -> None:
    with cluster.strategy() as strategy:
        worker = Worker(strategy, compression)
        worker.step(*gradients(0))
        before = strategy.traffic()
        for number in range(10):
            worker.step(*gradients(number))
        sent = (strategy.traffic() - before).sent_bytes
    overhead = 10 * 2 * 500
    assert sent < share * 10 * 2 * SIZE * 4 + overhead


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_rounding_is_all_that_half_the_bytes_cost(cluster: Cluster, name: str) -> None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    with cluster.strategy() as strategy:
        worker = Worker(strategy, name)
        worker.step(*gradients(0))
        for value, gradient in zip(worker.values(), gradients(0), strict=True):
            assert torch.equal(value, -gradient.to(dtype).float())


@a_few(
    "compression",
    ["int8", "int4", Int8(False), TopK(0.05)],
    "what was lost is kept in one way for every compression",
    ids=str,
)
def test_what_a_step_loses_later_ones_make_up_for(cluster: Cluster, compression: Any) -> None:
    with cluster.strategy() as strategy:
        worker = Worker(strategy, compression)
        for number in range(STEPS):
            worker.step(*gradients(number))
        lost = [t + v for t, v in zip(total(range(STEPS)), worker.values(), strict=True)]
        assert max(float(each.abs().max()) for each in lost) > 1e-3
        # Nothing new comes, so that only what was lost is sent.
        for _ in range(50):
            worker.step(*(torch.zeros_like(each) for each in gradients(0)))
        for value, expected in zip(worker.values(), total(range(STEPS)), strict=True):
            torch.testing.assert_close(-value, expected, rtol=0, atol=1e-4)


@pytest.mark.cluster
@pytest.mark.parametrize("verdict", [Verdict.CUT_BEFORE, Verdict.CUT_AFTER])
def test_a_lost_connection_neither_repeats_nor_forgets_anything(
    verdict: Verdict,
) -> None:
    with running(num_servers=1) as cluster, cluster.strategy() as strategy:
        expected = trained(strategy)
    with (
        running(num_servers=1) as cluster,
        FaultyProxy(cluster.servers[0]) as proxy,
    ):
        with Cluster([proxy.address], 1).strategy() as strategy:

            def cut(number: int) -> None:
                proxy.judge = CutAt(number % 10, verdict)

            assert all(map(torch.equal, trained(strategy, cut), expected))
        assert proxy.cuts > 3


def trained(
    strategy: ParameterServerStrategy, before: Callable[[int], object] = bool
) -> list[torch.Tensor]:
    worker = Worker(strategy, TopK(0.1))
    for number in range(STEPS):
        before(number)
        worker.step(*gradients(number))
    return worker.values()


def test_a_step_that_was_refused_is_as_if_it_had_not_been(cluster: Cluster) -> None:
    with cluster.strategy(0) as strategy:
        worker = Worker(strategy, TopK(0.1))
        for number in range(STEPS):
            worker.step(*gradients(number))
            worker.optimizer.param_groups[0]["lr"] = -1.0
            with pytest.raises(InvalidArgumentError):
                worker.step(*gradients(number))
            worker.optimizer.param_groups[0]["lr"] = 1.0
        found = worker.values()
    with running() as other, other.strategy() as strategy:
        assert all(map(torch.equal, found, trained(strategy)))


@pytest.mark.full("a lone worker makes up for what it lost, and steps of several are summed")
def test_workers_that_step_together_send_what_they_lost_too(cluster: Cluster) -> None:
    def program(strategy: ParameterServerStrategy, number: int) -> list[torch.Tensor]:
        worker = Worker(strategy, TopK(0.1))
        for step in range(STEPS):
            worker.step(*gradients(STEPS * number + step))
        for _ in range(100):
            worker.step(*(torch.zeros_like(each) for each in gradients(0)))
        return worker.values()

    for values in cluster.run(program, consistency="sync"):
        for value, expected in zip(values, total(range(2 * STEPS)), strict=True):
            torch.testing.assert_close(-value, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("compression", "smaller"), [("bf16", True), ("int8", True), (TopK(0.5), False)]
)
def test_rows_are_sent_as_rows(cluster: Cluster, compression: Any, smaller: bool) -> None:
    rows, dim = 200, 64
    values = torch.randn(rows, dim, generator=torch.Generator().manual_seed(0))
    with cluster.strategy() as strategy:
        with strategy.scope():
            table = nn.Embedding(1000, dim, sparse=True)
            nn.init.zeros_(table.weight)
        sgd = torch.optim.SGD(table.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd, compression=compression)

        def step() -> None:
            (table(torch.arange(rows)) * values).sum().backward()
            optimizer.step()

        before = strategy.traffic()
        strategy.run(step)
        sent = (strategy.traffic() - before).sent_bytes
        strategy.refresh()
        found = table.weight.detach()
    torch.testing.assert_close(-found[:rows], values, rtol=0.02, atol=0.02)
    assert torch.equal(-found[:rows], values) is not smaller
    assert (sent < 0.6 * values.nbytes + rows * 8 + 2000) is smaller


def test_what_is_not_finite_is_sent_as_it_is(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        worker = Worker(strategy, TopK(0.01))
        matrix, vector = gradients(0)
        matrix[0, 0] = float("nan")
        worker.step(matrix, vector)
        value = worker.values()[0]
        assert value.isnan().sum() == 1
        assert torch.equal(value[1:], -matrix[1:])


def test_small_gradients_and_whole_numbers_are_left_alone(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        with strategy.scope():
            weight = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(weight.weight)
        sgd = torch.optim.SGD(weight.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd, compression="int8")

        def step() -> None:
            weight.weight.grad = torch.full((1, 1), 0.1)
            optimizer.step()

        strategy.run(step)
        strategy.refresh()
        assert weight.weight.item() == pytest.approx(-0.1)


def test_without_a_cluster_nothing_is_sent_and_nothing_rounded() -> None:
    strategy = ParameterServerStrategy()
    worker = Worker(strategy, TopK(0.01))
    worker.step(*gradients(0))
    found = [-value for value in worker.values()]
    assert all(map(torch.equal, found, gradients(0)))
    assert strategy.traffic().sent_bytes == 0


@pytest.mark.parametrize(
    ("name", "meant"), [("bf16", BFloat16()), ("fp16", Float16()), ("int8", Int8())]
)
def test_a_name_stands_for_a_class(name: str, meant: Compression) -> None:
    assert compression_from(name) == meant


def test_what_is_no_compression_is_refused() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    sgd = torch.optim.SGD(parameters)
    with pytest.raises(InvalidArgumentError, match="say bf16, fp16, int8"):
        DistributedOptimizer(sgd, compression="zip")
    with pytest.raises(InvalidTypeError, match=r"not 0\.01"):
        DistributedOptimizer(sgd, compression=0.01)  # type: ignore[arg-type]
    for fraction in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(InvalidArgumentError, match="fraction"):
            TopK(fraction)
