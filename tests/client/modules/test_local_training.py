"""Modules trained by the strategies of one process, beside plain torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stratagem import (
    CentralStorageStrategy,
    DistributedOptimizer,
    HierarchicalCopyAllReduce,
    MirroredStrategy,
    NcclAllReduce,
    OneDeviceStrategy,
    PerReplica,
    ReduceOp,
    RunOptions,
    Strategy,
    Variable,
)
from stratagem._hosting.hosting import hosting_of
from stratagem_proto.programs.optimizers import OPTIMIZERS
from tests.client.small_model import BATCHES, loss_of, seeded_model
from tests.client.two_replicas import number

pytestmark = pytest.mark.usefixtures("four_cpus")

PAIR = ["CPU:0", "CPU:1"]
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "one": lambda: OneDeviceStrategy("CPU:1"),
    "mirrored": lambda: MirroredStrategy(PAIR),
    "hierarchical": lambda: MirroredStrategy(PAIR, HierarchicalCopyAllReduce()),
    "nccl": lambda: MirroredStrategy(PAIR, NcclAllReduce()),
    "central": lambda: CentralStorageStrategy(PAIR, "CPU:2"),
}
CONCURRENTLY = RunOptions(run_concurrently=True)


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return STRATEGIES[request.param]()


@pytest.fixture
def mirrored() -> Strategy:
    return MirroredStrategy(PAIR)


FULL = pytest.mark.full("each optimizer and each strategy stands in another case")
DENSE = [name for name in OPTIMIZERS if name != "SparseAdam"]
# Each optimizer with one strategy, which changes from one to the next.
TURNS = {(list(STRATEGIES)[i % len(STRATEGIES)], name) for i, name in enumerate(DENSE)}


def built(strategy: Strategy) -> Any:
    with strategy.scope():
        return seeded_model()


def split(strategy: Strategy, batch: Tensor) -> Any:
    parts = batch.chunk(strategy.num_replicas_in_sync)
    return PerReplica(parts) if len(parts) > 1 else batch


def train(
    strategy: Strategy,
    model: Any,
    optimizer: DistributedOptimizer,
    options: RunOptions | None = None,
) -> None:
    def step(features: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(model, features).backward()
        optimizer.step()

    for batch in BATCHES:
        strategy.run(step, (split(strategy, batch),), options=options)


def train_plainly(optimizer_class: Any) -> tuple[Any, torch.optim.Optimizer]:
    model = seeded_model()
    optimizer = optimizer_class(model.parameters())
    for batch in BATCHES:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return model, optimizer


def copies_of(strategy: Strategy) -> list[tuple[Tensor, ...]]:
    """The leaves of each hosted parameter."""
    hosting = hosting_of(strategy.extended)
    assert hosting is not None
    return [hosted.leaves for hosted in hosting.parameters]


def assert_equal_copies(strategy: Strategy) -> None:
    for first, *others in copies_of(strategy):
        for other in others:
            assert torch.equal(first, other)


# SparseAdam is for sparse gradients alone.
@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        pytest.param(*case, marks=() if case in TURNS else FULL)
        for case in itertools.product(STRATEGIES, DENSE)
    ],
    indirect=["strategy"],
)
def test_every_optimizer_takes_the_steps_of_torch(strategy: Strategy, name: str) -> None:
    cls: Any = OPTIMIZERS[name].cls
    plain, theirs = train_plainly(cls)
    model = built(strategy)
    optimizer = DistributedOptimizer(cls(model.parameters()))
    train(strategy, model, optimizer)
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        # Means of halves round differently; Rprop looks at signs alone.
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)
    assert_equal_copies(strategy)
    ours = optimizer.state_dict()["state"]
    assert ours.keys() == theirs.state_dict()["state"].keys()


def test_one_device_is_plain_torch_to_the_bit() -> None:
    strategy = STRATEGIES["one"]()
    plain, _ = train_plainly(torch.optim.Adam)
    model = built(strategy)
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))
    train(strategy, model, optimizer)
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_replicas_may_overlap(strategy: Strategy) -> None:
    results = []
    for options in (None, CONCURRENTLY):
        model = built(strategy)
        optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))
        train(strategy, model, optimizer, options)
        results.append([p.detach().clone() for p in model.parameters()])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_training_goes_on_from_a_state_dict(strategy: Strategy) -> None:
    """VCK-7 for modules: between strategies, and to the same result."""
    whole = built(strategy)
    first = DistributedOptimizer(torch.optim.Adam(whole.parameters()))
    train(strategy, whole, first)
    model_state = {key: value.clone() for key, value in whole.state_dict().items()}
    state = first.state_dict()
    train(strategy, whole, first)
    for build in STRATEGIES.values():
        other = build()
        again = built(other)
        again.load_state_dict(model_state)
        optimizer = DistributedOptimizer(torch.optim.Adam(again.parameters()))
        optimizer.load_state_dict(state)
        train(other, again, optimizer)
        for mine, theirs in zip(again.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
        assert_equal_copies(other)


def test_each_replica_has_parameters_of_its_own(mirrored: Strategy) -> None:
    """VAR-3 for modules: the first replica's are the user's."""
    model = built(mirrored)
    weight = model.first.weight
    leaves = mirrored.run(lambda: [model.first.weight])[0].values
    assert leaves[0] is weight
    assert leaves[0].data_ptr() != leaves[1].data_ptr()
    assert torch.equal(*leaves)
    mirrored.run(lambda: loss_of(model, BATCHES[number()]).backward())
    assert not torch.equal(leaves[0].grad, leaves[1].grad)


def test_what_the_user_writes_reaches_every_replica(strategy: Strategy) -> None:
    """By `no_grad` writes, `load_state_dict`, or another parameter in the place."""
    model = built(strategy)
    state = {key: torch.ones_like(value) for key, value in model.state_dict().items()}

    def seen() -> list[float]:
        weights = strategy.run(lambda: model.first.weight.detach().clone())
        return [float(w.sum()) for w in strategy.experimental_local_results(weights)]

    with torch.no_grad():
        model.first.weight.fill_(2.0)
    replicas = strategy.num_replicas_in_sync
    assert seen() == [30.0] * replicas
    model.load_state_dict(state)
    assert seen() == [15.0] * replicas
    model.load_state_dict({k: v * 3 for k, v in state.items()}, assign=True)
    assert seen() == [45.0] * replicas
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    train(strategy, model, optimizer)
    assert_equal_copies(strategy)
    assert seen() != [45.0] * replicas


def test_frozen_parameters_stay(strategy: Strategy) -> None:
    model = built(strategy)
    before = model.first.weight.detach().clone()
    model.first.weight.requires_grad_(False)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(strategy, model, optimizer)
    assert torch.equal(model.first.weight, before)
    assert_equal_copies(strategy)


@pytest.mark.parametrize("name", ["mirrored", "hierarchical", "central"])
def test_a_replica_without_a_gradient_does_not_count(name: str) -> None:
    strategy = STRATEGIES[name]()
    with strategy.scope():
        first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        first.weight.fill_(1.0)
        second.weight.fill_(1.0)
    parameters = [first.weight, second.weight]
    optimizer = DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))

    def step() -> None:
        (first if number() == 0 else second)(torch.ones(1)).backward()
        optimizer.step()

    strategy.run(step)
    strategy.run(lambda: None)
    assert [float(p.detach()) for p in parameters] == [0.5, 0.5]
    assert_equal_copies(strategy)


def test_rows_of_embeddings_are_applied_sparsely(strategy: Strategy) -> None:
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        table = nn.Embedding(4, 2, sparse=True)
    with torch.no_grad():
        table.weight.zero_()
    optimizer = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), ReduceOp.SUM)

    def step() -> None:
        optimizer.zero_grad()
        table(torch.tensor([number(), 3])).sum().backward()
        optimizer.step()

    strategy.run(step)
    strategy.run(lambda: None)
    own = [[-1.0] * 2 if row < replicas else [0.0] * 2 for row in range(3)]
    assert table.weight.tolist() == [*own, [-float(replicas)] * 2]
    assert_equal_copies(strategy)


def test_variables_are_trained_too(strategy: Strategy) -> None:
    with strategy.scope():
        variable = Variable([1.0, 2.0])
        optimizer = DistributedOptimizer(torch.optim.SGD([variable.value()], lr=0.5))

    def step() -> Tensor | None:
        optimizer.zero_grad()
        (variable * variable).sum().backward()
        optimizer.step()
        return variable.grad

    grads = strategy.experimental_local_results(strategy.run(step))
    assert [grad.tolist() for grad in grads] == [[2.0, 4.0]] * len(grads)
    for copy in variable.values:
        assert copy.numpy().tolist() == [0.0, 0.0]


def test_lazy_and_tied_parameters_are_adopted(strategy: Strategy) -> None:
    with strategy.scope():
        model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 3), nn.Linear(3, 3))
        model[2].weight = model[1].weight
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step() -> None:
        model(torch.ones(2, 5)).sum().backward()
        optimizer.step()

    strategy.run(step)
    strategy.run(lambda: None)
    assert len(copies_of(strategy)) == 5
    assert_equal_copies(strategy)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
def test_copies_on_gpus_stay_equal() -> None:
    strategy = MirroredStrategy(["cuda:0", "cuda:1"])
    model = built(strategy)
    optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))

    def step() -> None:
        loss_of(model, BATCHES[number()].to(model.first.weight.device)).backward()
        optimizer.step()

    strategy.run(step, options=CONCURRENTLY)
    for first, second in copies_of(strategy):
        assert first.device != second.device
        assert torch.equal(first.cpu(), second.cpu())
