"""Modules and optimizers of a coordinator, used by functions on workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stratagem import (
    DistributedOptimizer,
    ParameterServerStrategy,
    Variable,
    VariableAggregation,
    get_replica_context,
)
from stratagem.nn import DynamicEmbedding, Embedding
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.clusters import running
from tests.client.shipping.coordination import Coordination, Scaled, coordinating
from tests.client.small_model import (
    BATCHES,
    assert_same_bytes,
    loss_of,
    parameters_of,
    seeded_model,
)
from tests.full import a_few

SUM = VariableAggregation.SUM

Program = tuple[Any, Callable[[Tensor], Any]]


@pytest.fixture(scope="module")
def coordination() -> Iterator[Coordination]:
    with coordinating() as found:
        yield found


def program(strategy: ParameterServerStrategy, **options: Any) -> Program:
    """A model, and the function that trains it on a batch."""
    with strategy.scope():
        model = seeded_model()
    inner = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = DistributedOptimizer(inner, **options)

    def replica_step(features: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = loss_of(model, features)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, lambda batch: strategy.run(replica_step, args=(batch,))


def trained_between_graph(**options: Any) -> list[Tensor]:
    """The parameters after one worker has trained by itself."""
    partitioner = options.pop("variable_partitioner", None)
    with (
        running(2) as cluster,
        cluster.strategy(variable_partitioner=partitioner) as strategy,
    ):
        model, train = program(strategy, **options)
        for batch in BATCHES:
            train(batch)
        strategy.refresh()
        return [one.clone() for one in parameters_of(model)]


@a_few(
    "options",
    [
        {},
        {"clip_norm": 0.1, "compression": "bf16", "reduce_op": "sum"},
        {"overlap": True},
        {"variable_partitioner": FixedShardsPartitioner(2)},
    ],
    "each option trains in tests of its own",
    2,
    ids=["plain", "limited", "overlapping", "in shards"],
)
def test_a_worker_trains_as_one_that_runs_the_program_itself(
    options: dict[str, Any],
) -> None:
    own = dict(options)
    partitioner = own.pop("variable_partitioner", None)
    with coordinating(variable_partitioner=partitioner) as coordination:
        model, train = program(coordination.strategy, **own)
        parcels = [coordination.closure_pickler.dump((train, (batch,))) for batch in BATCHES]
        for parcel in parcels:
            shipped, args = coordination.load(parcel)
            shipped(*args)
        coordination.strategy.refresh()
        assert_same_bytes(parameters_of(model), trained_between_graph(**options))


def test_schedulers_on_the_coordinator_reach_the_workers(
    coordination: Coordination,
) -> None:
    w = coordination.built(lambda: Variable(8.0))
    optimizer = DistributedOptimizer(torch.optim.SGD([w.value()], lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def replica_step() -> None:
        w.value().grad = torch.ones(())
        optimizer.step()

    strategy, seen = coordination.strategy, []
    for _ in range(3):
        coordination.ship(lambda: strategy.run(replica_step))()
        seen.append(float(w.numpy()))
        scheduler.step()
    assert seen == [7, 6.5, 6.25]


def test_a_group_that_is_added_later_is_trained_too(
    coordination: Coordination,
) -> None:
    v, w = (coordination.built(lambda: Variable(1.0)) for _ in range(2))
    optimizer = DistributedOptimizer(torch.optim.SGD([v.value()], lr=1.0))
    theirs = coordination.ship(optimizer)
    assert theirs.name == optimizer.name
    optimizer.add_param_group({"params": [w.value()], "lr": 0.25})
    assert coordination.ship(optimizer) is theirs
    assert [group["lr"] for group in theirs.param_groups] == [1.0, 0.25]
    assert theirs.param_groups[1]["params"][0] is coordination.ship(w).value()


def large_module() -> nn.Module:
    return nn.Sequential(nn.Linear(1000, 900), nn.ReLU(), nn.Linear(900, 120))


def test_a_million_parameters_are_sent_in_less_than_10_kb(
    coordination: Coordination,
) -> None:
    model = coordination.built(large_module)
    strategy = coordination.strategy
    assert sum(one.numel() for one in model.parameters()) > 1_000_000
    parcel = coordination.closure_pickler.dump(lambda x: strategy.run(model, args=(x,)))
    sizes = [len(one.encode()) for one in parcel.definitions]
    assert len(parcel.payload) + sum(sizes) < 10_000
    x = torch.ones(1, 1000)
    assert torch.equal(coordination.load(parcel)(x), model(x))


def test_parameters_have_their_values_once_they_arrive(
    coordination: Coordination,
) -> None:
    model = coordination.built(seeded_model)
    assert_same_bytes(parameters_of(coordination.ship(model)), parameters_of(model))


def test_what_the_coordinator_writes_to_parameters_reaches_workers(
    coordination: Coordination,
) -> None:
    strategy, model = coordination.strategy, coordination.built(seeded_model)
    shipped = coordination.ship(lambda x: strategy.run(model, args=(x,)))
    nn.init.ones_(model.first.weight)
    coordination.closure_pickler.dump(None)
    assert torch.equal(shipped(BATCHES[0]), model(BATCHES[0]))


def test_the_state_dict_of_a_worker_has_the_newest_values(
    coordination: Coordination,
) -> None:
    model, train = program(coordination.strategy)
    state_dict = coordination.ship(model.state_dict)
    coordination.ship(train, worker=1)(BATCHES[0])
    assert_same_bytes(state_dict(), model.state_dict())


def test_recurrent_modules_compute_with_the_parameters_of_the_worker(
    coordination: Coordination,
) -> None:
    model = coordination.built(lambda: nn.LSTM(2, 3, batch_first=True))
    strategy, x = coordination.strategy, torch.ones(1, 2, 2)
    shipped = coordination.ship(lambda: strategy.run(model, args=(x,))[0])
    nn.init.zeros_(model.weight_hh_l0)
    coordination.closure_pickler.dump(None)
    assert torch.equal(shipped(), model(x)[0])


@pytest.mark.usefixtures("two_cpus")
def test_each_replica_of_a_worker_has_leaves_and_buffers_of_its_own() -> None:
    with coordinating(num_replicas_per_worker=2) as coordination:
        strategy, scaled = coordination.strategy, coordination.built(Scaled)
        v = coordination.built(lambda: Variable(1.0, aggregation=SUM))
        recurrent = coordination.built(lambda: nn.RNN(1, 1))

        def replica_step() -> list[float]:
            context = get_replica_context()
            assert context is not None
            number = int(context.replica_id_in_sync_group or 0)
            (scaled.inner(torch.ones(1, 1)) * (number + 1)).sum().backward()
            scaled.statistics.add_(number)
            v.assign_add(torch.ones(()))
            recurrent(torch.ones(1, 1, 1))[0].sum().backward()
            assert recurrent.bias_ih_l0.grad is not None
            return [float(scaled.inner.bias.grad), float(scaled.statistics[0])]

        shipped, theirs = coordination.ship((lambda: strategy.run(replica_step), recurrent))
        first, second = shipped()
        assert [one.values for one in (first, second)] == [(1, 2), (0, 1)]
        assert v.numpy() == 3
        recurrent.eval()
        assert coordination.ship(recurrent) is theirs
        assert not theirs.training
        assert shipped()[0].values == (2, 4)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Embedding(50, 4),
        lambda: Embedding(200_000, 4),
        lambda: DynamicEmbedding(4),
    ],
    ids=["small", "in parts", "of keys"],
)
def test_tables_are_looked_up_and_trained_from_workers(
    coordination: Coordination, build: Callable[[], nn.Module]
) -> None:
    table = coordination.built(build)
    optimizer = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    strategy, rows = coordination.strategy, torch.tensor([3, 49, 3])

    def replica_step() -> Tensor:
        found: Tensor = table(rows)
        found.sum().backward()
        optimizer.step()
        return found.detach()

    parcel = coordination.closure_pickler.dump(lambda: strategy.run(replica_step))
    assert sum(len(one.encode()) for one in parcel.definitions) < 10_000
    before = coordination.load(parcel)()
    after = table(rows).detach()
    expected = before - torch.tensor([2.0, 1.0, 2.0])[:, None]
    assert_same_bytes(after, expected)
