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
    config,
    get_replica_context,
)
from stratagem._shipping.parcel import Parcel
from stratagem.nn import DynamicEmbedding, Embedding
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.clusters import running
from tests.client.shipping import Coordination, coordinating
from tests.client.small_model import (
    BATCHES,
    assert_same_bytes,
    loss_of,
    parameters_of,
    seeded_model,
)

SUM = VariableAggregation.SUM

Program = tuple[Any, Callable[[Tensor], Any]]


@pytest.fixture(scope="module")
def coordination() -> Iterator[Coordination]:
    with coordinating() as found:
        yield found


def in_scope(coordination: Coordination, build: Callable[[], Any]) -> Any:
    with coordination.strategy.scope():
        return build()


def program(strategy: ParameterServerStrategy, **settings: Any) -> Program:
    """A model, and the function that trains it on a batch."""
    with strategy.scope():
        model = seeded_model()
    inner = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = DistributedOptimizer(inner, **settings)

    def replica_step(features: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = loss_of(model, features)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, lambda batch: strategy.run(replica_step, args=(batch,))


def trained_between_graph(**settings: Any) -> list[Tensor]:
    """The parameters after one worker has trained by itself."""
    partitioner = settings.pop("variable_partitioner", None)
    with (
        running(2) as cluster,
        cluster.strategy(variable_partitioner=partitioner) as strategy,
    ):
        model, train = program(strategy, **settings)
        for batch in BATCHES:
            train(batch)
        strategy.refresh()
        return [one.clone() for one in parameters_of(model)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clip_norm": 0.1, "compression": "bf16", "reduce_op": "sum"},
        {"overlap": True},
        {"variable_partitioner": FixedShardsPartitioner(2)},
    ],
    ids=["plain", "limited", "overlapping", "in shards"],
)
def test_a_worker_trains_as_one_that_runs_the_program_itself(
    settings: dict[str, Any],
) -> None:
    own = dict(settings)
    partitioner = own.pop("variable_partitioner", None)
    with coordinating(variable_partitioner=partitioner) as coordination:
        model, train = program(coordination.strategy, **own)
        parcels = [coordination.dumper.dump((train, (batch,))) for batch in BATCHES]
        for parcel in parcels:
            shipped, args = coordination.load(parcel)
            shipped(*args)
        coordination.strategy.refresh()
        assert_same_bytes(parameters_of(model), trained_between_graph(**settings))


def test_schedulers_on_the_coordinator_reach_the_workers(
    coordination: Coordination,
) -> None:
    w = in_scope(coordination, lambda: Variable(8.0))
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
    v, w = (in_scope(coordination, lambda: Variable(1.0)) for _ in range(2))
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
    model = in_scope(coordination, large_module)
    strategy = coordination.strategy
    assert sum(one.numel() for one in model.parameters()) > 1_000_000
    parcel = coordination.dumper.dump(lambda x: strategy.run(model, args=(x,)))
    sizes = [len(one.encode()) for one in parcel.definitions]
    assert len(parcel.payload) + sum(sizes) < 10_000
    x = torch.ones(1, 1000)
    assert torch.equal(coordination.load(parcel)(x), model(x))


def test_parts_of_a_module_are_the_same_objects_wherever_they_appear(
    coordination: Coordination,
) -> None:
    model = in_scope(coordination, seeded_model)
    model.unused.weight = model.first.weight
    theirs, first, weight = coordination.ship((model, model.first, model.first.weight))
    assert theirs.first is first
    assert theirs.first.weight is theirs.unused.weight is weight
    assert [type(one) for one in theirs.modules()] == [
        type(one) for one in model.modules()
    ]
    assert coordination.ship(model.parameters).__self__ is theirs


def test_parameters_have_their_values_once_they_arrive(
    coordination: Coordination,
) -> None:
    model = in_scope(coordination, seeded_model)
    assert_same_bytes(parameters_of(coordination.ship(model)), parameters_of(model))


def test_what_the_coordinator_writes_to_parameters_reaches_workers(
    coordination: Coordination,
) -> None:
    strategy, model = coordination.strategy, in_scope(coordination, seeded_model)
    shipped = coordination.ship(lambda x: strategy.run(model, args=(x,)))
    nn.init.ones_(model.first.weight)
    coordination.dumper.dump(None)
    assert torch.equal(shipped(BATCHES[0]), model(BATCHES[0]))


def test_the_state_dict_of_a_worker_has_the_newest_values(
    coordination: Coordination,
) -> None:
    model, train = program(coordination.strategy)
    state_dict = coordination.ship(model.state_dict)
    coordination.ship(train, worker=1)(BATCHES[0])
    assert_same_bytes(state_dict(), model.state_dict())


def test_frozen_parameters_are_frozen_there(coordination: Coordination) -> None:
    model = in_scope(coordination, lambda: nn.Linear(2, 1))
    theirs = coordination.ship(model)
    model.weight.requires_grad_(False)
    assert theirs.weight.requires_grad
    assert coordination.ship(model) is theirs
    assert not theirs.weight.requires_grad
    assert theirs.bias.requires_grad


class Scaled(nn.Module):
    """Has attributes of all sorts."""

    statistics: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)
        self.register_buffer("statistics", torch.zeros(2))
        self.scale, self.noted = 1.0, {"names": ["a"]}


def test_buffers_and_attributes_are_sent_again_when_they_change(
    coordination: Coordination,
) -> None:
    model = in_scope(coordination, Scaled)
    theirs = coordination.ship(model)
    buffer = theirs.statistics
    model.statistics.add_(1)
    model.noted["names"].append("b")
    model.eval()
    assert coordination.ship(model) is theirs
    assert theirs.statistics is buffer
    assert torch.equal(buffer, torch.ones(2))
    assert theirs.noted == {"names": ["a", "b"]}
    assert not theirs.training
    assert not theirs.inner.training
    model.train()
    assert coordination.ship(model).inner.training


@pytest.mark.parametrize("size", [1, 100_000])
def test_buffers_of_any_size_are_seen_to_change(
    coordination: Coordination, size: int
) -> None:
    model = in_scope(coordination, Scaled)
    model.statistics = torch.zeros(size)
    theirs = coordination.ship(model)
    assert coordination.define(coordination.dumper.dump(model)) == 0
    model.statistics.numpy()[-1] = 1
    coordination.ship(model)
    assert torch.equal(theirs.statistics, model.statistics)


def test_only_what_changed_is_written_over(coordination: Coordination) -> None:
    model = in_scope(coordination, Scaled)
    theirs = coordination.ship(model)
    theirs.statistics.fill_(5)
    theirs.own = "of the worker"
    model.scale = 2.0
    coordination.ship(model)
    assert (theirs.scale, theirs.own) == (2.0, "of the worker")
    assert torch.equal(theirs.statistics, torch.full((2,), 5.0))


def test_what_is_taken_away_is_gone_there_too(coordination: Coordination) -> None:
    model = in_scope(coordination, Scaled)
    handle = model.register_forward_pre_hook(nn.Module.eval)
    theirs = coordination.ship(model)
    assert len(theirs._forward_pre_hooks) == 1
    handle.remove()
    del model.noted, model.statistics, model.inner
    assert coordination.ship(model) is theirs
    assert not theirs._forward_pre_hooks
    assert not hasattr(theirs, "noted")
    assert not hasattr(theirs, "statistics")
    assert list(theirs.parameters()) == []


def test_closures_get_modules_as_they_were_when_they_were_dumped(
    coordination: Coordination,
) -> None:
    model = in_scope(coordination, Scaled)
    parcels: list[Parcel] = []
    for model.scale in 1.0, 2.0, 3.0:
        parcels.append(coordination.dumper.dump((model, len(parcels))))
    for parcel in parcels:
        coordination.define(parcel)
    seen = [coordination.load(parcel)[0].scale for parcel in parcels]
    assert seen == [1.0, 2.0, 3.0]


def test_one_that_was_overtaken_has_to_do_with_what_is_there(
    coordination: Coordination,
) -> None:
    model = in_scope(coordination, Scaled)
    earlier = coordination.dumper.dump(model)
    model.scale = 2.0
    assert coordination.ship(model).scale == 2.0
    assert coordination.load(earlier).scale == 2.0


def test_modules_that_refer_to_each_other_arrive(coordination: Coordination) -> None:
    model = in_scope(coordination, Scaled)
    model.inner.__dict__["parent"] = [model]
    theirs = coordination.ship(model.inner)
    assert theirs.parent[0].inner is theirs


def test_recurrent_modules_compute_with_the_parameters_of_the_worker(
    coordination: Coordination,
) -> None:
    model = in_scope(coordination, lambda: nn.LSTM(2, 3, batch_first=True))
    strategy, x = coordination.strategy, torch.ones(1, 2, 2)
    shipped = coordination.ship(lambda: strategy.run(model, args=(x,))[0])
    nn.init.zeros_(model.weight_hh_l0)
    coordination.dumper.dump(None)
    assert torch.equal(shipped(), model(x)[0])


@pytest.fixture
def two_cpus() -> Iterator[None]:
    config.set_logical_cpus(2)
    yield
    config.set_logical_cpus(1)


@pytest.mark.usefixtures("two_cpus")
def test_each_replica_of_a_worker_has_leaves_and_buffers_of_its_own() -> None:
    with coordinating(num_replicas_per_worker=2) as coordination:
        strategy, scaled = coordination.strategy, in_scope(coordination, Scaled)
        v = in_scope(coordination, lambda: Variable(1.0, aggregation=SUM))
        recurrent = in_scope(coordination, lambda: nn.RNN(1, 1))

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

        shipped, theirs = coordination.ship(
            (lambda: strategy.run(replica_step), recurrent)
        )
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
    table = in_scope(coordination, build)
    optimizer = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    strategy, rows = coordination.strategy, torch.tensor([3, 49, 3])

    def replica_step() -> Tensor:
        found: Tensor = table(rows)
        found.sum().backward()
        optimizer.step()
        return found.detach()

    parcel = coordination.dumper.dump(lambda: strategy.run(replica_step))
    assert sum(len(one.encode()) for one in parcel.definitions) < 10_000
    before = coordination.load(parcel)()
    after = table(rows).detach()
    expected = before - torch.tensor([2.0, 1.0, 2.0])[:, None]
    assert_same_bytes(after, expected)
