"""Parameters of modules whose variables are divided into shards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stratagem
from stratagem import (
    AttachmentError,
    DistributedOptimizer,
    InvalidArgumentError,
    ParameterServerStrategy,
    config,
)
from stratagem.optim import RowWiseAdagrad
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.clusters import Cluster, running
from tests.full import a_few
from tests.nests import same_bytes

STEPS = 12


class Recommender(nn.Module):
    """A table and a dense part of sizes that divide into nothing."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(11, 5, sparse=sparse)
        self.head = nn.Linear(5, 7)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.table(ids)).tanh() * self.scale
        return result


def batches() -> Iterator[Tensor]:
    # The last rows, and so the last shards, are not used by every step.
    generator = torch.Generator().manual_seed(7)
    for step in range(STEPS):
        yield torch.randint(0, 4 if step % 2 else 11, (6,), generator=generator)


def trained(model: nn.Module, optimizers: Any, run: Callable[..., Any]) -> None:
    def step(ids: Tensor) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(ids).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()

    for ids in batches():
        run(step, (ids,))


def locally(step: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    step(*args)


def dividing(cluster: Cluster, shards: int, worker: int = 0, **settings: Any) -> Any:
    partitioner = FixedShardsPartitioner(shards)
    return cluster.strategy(worker, variable_partitioner=partitioner, **settings)


DENSE: dict[str, Any] = {
    "SGD": partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01),
    "Adam": torch.optim.Adam,
    "Adagrad": partial(torch.optim.Adagrad, lr_decay=0.01),
    "NAdam": torch.optim.NAdam,
    "ASGD": torch.optim.ASGD,
    "RowWiseAdagrad": partial(RowWiseAdagrad, weight_decay=0.01),
}


@a_few("shards", [2, 1, 3], "tables in any number of shards are shown by test_tables.py")
@a_few("consistency", ["async", "sync"], "what a lone worker reads does not depend on others")
def test_dense_training_equals_plain_torch_byte_for_byte(shards: int, consistency: str) -> None:
    with (
        running(num_servers=2) as cluster,
        dividing(cluster, shards, consistency=consistency) as strategy,
    ):
        for name, make in DENSE.items():
            reference = Recommender()
            with strategy.scope(name=name):
                model = copy.deepcopy(reference)
            optimizer = DistributedOptimizer(make(model.parameters(), lr=0.01))
            plain = make(reference.parameters(), lr=0.01)
            trained(reference, [plain], locally)
            trained(model, [optimizer], strategy.run)
            assert same_bytes(model.state_dict(), reference.state_dict()), name
            assert same_bytes(optimizer.state_dict(), plain.state_dict()), name


@a_few(
    "shards",
    [1, 2, 3, 7],
    "tables in any number of shards are shown beside torch by test_tables.py",
)
def test_row_sparse_training_equals_plain_torch_byte_for_byte(shards: int) -> None:
    makes: dict[str, Any] = {
        "SGD": partial(torch.optim.SGD, lr=0.1),
        "Adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.01),
        "RowWiseAdagrad": partial(RowWiseAdagrad, lr=0.1, weight_decay=0.01),
    }
    with running(num_servers=2) as cluster, dividing(cluster, shards) as strategy:
        for name, make in makes.items():
            reference = Recommender(sparse=True)
            with strategy.scope(name=name):
                model = copy.deepcopy(reference)
            optimizer = DistributedOptimizer(make(model.parameters()))
            plain = make(reference.parameters())
            plain.register_step_pre_hook(adding_repeated_rows_up)
            trained(reference, [plain], locally)
            trained(model, [optimizer], strategy.run)
            assert same_bytes(model.state_dict(), reference.state_dict()), name
            assert same_bytes(optimizer.state_dict(), plain.state_dict()), name


def adding_repeated_rows_up(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Do before a step what is done before a row travels."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()


def test_the_servers_have_shards_and_their_slots(cluster: Cluster) -> None:
    with dividing(cluster, 2) as strategy:
        with strategy.scope():
            model = nn.Linear(3, 5, bias=False)
        optimizer = DistributedOptimizer(torch.optim.Adagrad(model.parameters()))
        strategy.run(lambda: (model(torch.ones(3)).sum().backward(), optimizer.step()))
        found = {
            one.name: (one.server, one.shape, one.slot_of)
            for one in strategy.extended.variable_placements()
            if not one.name.endswith("/step")
        }
    assert found == {
        "weight/part_0": ("/job:ps/task:0", (3, 3), ""),
        "weight/part_0/Adagrad/sum": ("/job:ps/task:0", (3, 3), "weight/part_0"),
        "weight/part_1": ("/job:ps/task:1", (2, 3), ""),
        "weight/part_1/Adagrad/sum": ("/job:ps/task:1", (2, 3), "weight/part_1"),
    }


def test_the_optimizers_state_is_that_of_whole_parameters(cluster: Cluster) -> None:
    reference = Recommender()
    plain = torch.optim.Adam(reference.parameters())
    trained(reference, [plain], locally)
    with dividing(cluster, 3) as strategy:
        with strategy.scope():
            model = Recommender()
        optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))
        model.load_state_dict(reference.state_dict())
        optimizer.load_state_dict(plain.state_dict())
        assert same_bytes(optimizer.state_dict(), plain.state_dict())
        trained(reference, [plain], locally)
        trained(model, [optimizer], strategy.run)
        assert same_bytes(model.state_dict(), reference.state_dict())


def test_local_writes_reach_every_shard(cluster: Cluster) -> None:
    with (
        dividing(cluster, 3) as chief,
        dividing(cluster, 3, 1, peer_seconds=1.0) as other,
    ):
        with chief.scope():
            model = nn.Linear(2, 4, bias=False)
        with other.scope():
            seen = nn.Linear(2, 4, bias=False)
        nn.init.ones_(model.weight)
        chief.refresh()
        other.refresh()
        assert torch.equal(seen.weight, torch.ones(4, 2))
        assert seen.weight.is_leaf
        with torch.no_grad():
            seen.weight[3] = 0.0
        with pytest.raises(stratagem.FailedPreconditionError, match="'weight'"):
            other.refresh()


def test_a_parameter_keeps_its_shape(cluster: Cluster) -> None:
    with dividing(cluster, 2) as strategy:
        with strategy.scope():
            model = nn.Linear(2, 4, bias=False)
        model.weight = nn.Parameter(torch.ones(5, 2))
        with pytest.raises(InvalidArgumentError, match=r"now has shape \(5, 2\)"):
            strategy.refresh()


def test_a_write_in_a_replica_is_undone_in_every_shard(cluster: Cluster) -> None:
    with dividing(cluster, 2) as strategy:
        with strategy.scope():
            model = nn.Linear(2, 4, bias=False)
        before = model.weight.detach().clone()
        with pytest.raises(stratagem.ContextError, match="was written in a replica"):
            strategy.run(lambda: nn.init.zeros_(model.weight))
        strategy.refresh()
        assert torch.equal(model.weight, before)


def test_workers_have_to_divide_alike(cluster: Cluster) -> None:
    def make(strategy: ParameterServerStrategy) -> nn.Module:
        with strategy.scope():
            return nn.Linear(2, 4)

    with dividing(cluster, 2) as chief, dividing(cluster, 3, 1) as other:
        make(chief)
        theirs = r"'weight/part_1' \(float32, shape \(2, 2\) from row 2 of \(4, 2\)"
        with pytest.raises(AttachmentError, match=theirs):
            make(other)


def test_a_chief_that_starts_again_goes_on_with_the_shards(cluster: Cluster) -> None:
    with dividing(cluster, 3) as strategy:
        with strategy.scope():
            first = nn.Linear(2, 4)
        expected = copy.deepcopy(first.state_dict())
    with dividing(cluster, 3) as strategy:
        with strategy.scope():
            again = nn.Linear(2, 4)
        assert same_bytes(again.state_dict(), expected)


def test_replicas_of_one_worker_share_the_shards(cluster: Cluster) -> None:
    config.set_logical_cpus(2)
    with dividing(cluster, 2, num_replicas_per_worker=2) as strategy:
        with strategy.scope():
            model = nn.Linear(1, 4, bias=False)
        before = model.weight.detach().clone()
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        strategy.run(lambda: (model(torch.ones(1)).sum().backward(), optimizer.step()))
        strategy.refresh()
        assert torch.equal(model.weight, before - 1)


def test_update_functions_change_no_divided_parameter(cluster: Cluster) -> None:
    with dividing(cluster, 2) as strategy:
        with strategy.scope():
            table: Any = stratagem.Variable(torch.zeros(4))
        shard, ones = table.variables[1], torch.ones(2)
        strategy.extended.update(shard, lambda v, x: v.assign_add(x), args=(ones,))
        assert table.numpy().tolist() == [0, 0, 1, 1]
        with pytest.raises(InvalidArgumentError, match="one of its variables"):
            strategy.extended.update(table, lambda v: v.assign_add(1.0))
        assert strategy.extended.non_slot_devices([table]) is table.variables[0]


def test_without_a_cluster_nothing_is_divided() -> None:
    strategy = ParameterServerStrategy(variable_partitioner=FixedShardsPartitioner(2))
    with strategy.scope():
        assert isinstance(stratagem.Variable(torch.zeros(4)), stratagem.Variable)
