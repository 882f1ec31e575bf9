"""Embedding tables on servers, trained beside torch's own."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import stratagem
from stratagem import (
    DistributedOptimizer,
    ParameterServerStrategy,
    UnimplementedError,
    config,
    partitioners,
)
from stratagem._parameter_server.extended import ParameterServerExtended
from tests.client.clusters import Cluster, running
from tests.full import by_values

ROWS = 23

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.3),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.3, lr_decay=0.1),
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1),
    "row-wise Adagrad": lambda parameters: stratagem.optim.RowWiseAdagrad(parameters, lr=0.3),
}


def divided(cluster: Cluster, shards: int) -> ParameterServerStrategy:
    partitioner = partitioners.FixedShardsPartitioner(shards)
    return cluster.strategy(variable_partitioner=partitioner)


def like(table: nn.Embedding) -> nn.Embedding:
    """Torch's own table with the same values."""
    value = table.weight.detach().clone()
    padding = table.padding_idx
    made: nn.Embedding = nn.Embedding.from_pretrained(value, False, padding, sparse=True)
    return made


def loss_of(table: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """A loss with two lookups, whose rows overlap and repeat."""
    first: torch.Tensor = table(ids).square().sum()
    second: torch.Tensor = (table(ids[:2]) * 3).sin().sum()
    return first + second


def train(
    strategy: ParameterServerStrategy,
    table: nn.Module,
    make: Callable[[Any], torch.optim.Optimizer],
    steps: int = 8,
) -> None:
    optimizer = DistributedOptimizer(make(table.parameters()))

    def step(ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(table, ids).backward()
        optimizer.step()

    for ids in batches(steps):
        strategy.run(step, args=(ids,))


def train_plainly(
    table: nn.Module,
    make: Callable[[Any], torch.optim.Optimizer],
    steps: int = 8,
) -> None:
    optimizer = make(table.parameters())
    for ids in batches(steps):
        optimizer.zero_grad()
        loss_of(table, ids).backward()
        for parameter in table.parameters():
            # Repeated rows travel as one; torch's SGD would add them one by one.
            parameter.grad = present(parameter.grad).coalesce()
        optimizer.step()


def present(gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return gradient


def batches(steps: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        yield torch.randint(0, ROWS, (6, 2), generator=generator)


@by_values(
    "shards,name,kind", [1, 2, 3, 7], list(OPTIMIZERS), [nn.Embedding, stratagem.nn.Embedding]
)
def test_rows_are_trained_as_torch_trains_them_in_any_number_of_shards(
    cluster: Cluster, kind: type[nn.Embedding], name: str, shards: int
) -> None:
    with divided(cluster, shards) as strategy:
        with strategy.scope():
            table = kind(ROWS, 5, padding_idx=2, sparse=True)
        placements = strategy.extended.variable_placements()
        assert len(placements) == shards
        theirs = like(table)
        train(strategy, table, OPTIMIZERS[name])
        train_plainly(theirs, OPTIMIZERS[name])
        assert torch.equal(table.weight.detach(), theirs.weight)


@pytest.mark.full("initial values of rows are drawn alike by tests/proto/test_initial_values.py")
def test_a_table_larger_than_any_machine_is_the_same_in_one_shard_and_in_three() -> None:
    found = []
    for servers in (1, 3):
        torch.manual_seed(11)
        with running(servers) as cluster, cluster.strategy() as strategy:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with strategy.scope():
                table = nn.Embedding(10**9, 16)
            assert len(strategy.extended.variable_placements()) == servers
            touched = touch(strategy, table)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            # In KiB; the table has 64 GB, its touched rows and their state 13 MB.
            assert grown < 300 << 10
            with torch.no_grad():
                found.append(table(touched))
    assert torch.equal(*found)
    assert found[0].std() > 0.5


def touch(strategy: ParameterServerStrategy, table: nn.Embedding) -> torch.Tensor:
    """Train 10^5 rows; return some of them, and some others."""
    optimizer = DistributedOptimizer(torch.optim.Adagrad(table.parameters(), lr=0.1))

    def step(ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        table(ids).square().sum().backward()
        optimizer.step()

    generator = torch.Generator().manual_seed(5)
    for _ in range(10):
        ids = torch.randint(0, 10**9, (10_000,), generator=generator)
        strategy.run(step, args=(ids,))
    return torch.cat([ids[:1000], torch.tensor([0, 10**9 - 1])])


def test_an_optimizer_makes_no_state_here_for_rows_on_servers(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table = stratagem.nn.Embedding(10**6, 16)
    adagrad = torch.optim.Adagrad(table.parameters(), initial_accumulator_value=0.5)
    (state,) = adagrad.state.values()
    assert state["sum"].shape == table.weight.shape
    assert state["sum"][7, 7] == 0.5
    assert state["sum"].untyped_storage().nbytes() == 4


def test_a_large_table_is_divided_among_all_servers(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        with strategy.scope():
            large = stratagem.nn.Embedding(10_000, 16)
            small = stratagem.nn.Embedding(10, 16)
        where = [(one.name, one.server) for one in placed(strategy)]
        assert isinstance(strategy.extended, ParameterServerExtended)
        parts = [part for table in strategy.extended._hosting._tables for part in table.parts]
    assert "'weight/part_1' shape=(5000, 16)" in repr(parts)
    assert where == [
        ("weight/part_0", "/job:ps/task:0"),
        ("weight/part_1", "/job:ps/task:1"),
        ("weight_1", "/job:ps/task:0"),
    ]
    assert large.weight.shape == (10_000, 16)
    assert small.weight.shape == (10, 16)


def placed(strategy: ParameterServerStrategy) -> list[Any]:
    placements = strategy.extended.variable_placements()
    return sorted(placements, key=lambda one: one.name)


def test_the_gradients_of_a_workers_replicas_are_added_by_row(
    cluster: Cluster,
) -> None:
    config.set_logical_cpus(2)
    with cluster.strategy(num_replicas_per_worker=2) as strategy:
        with strategy.scope():
            table = stratagem.nn.Embedding(ROWS, 2)
        sgd = torch.optim.SGD(table.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd, reduce_op="sum")
        before = table.weight.detach()

        def step(ids: torch.Tensor) -> None:
            optimizer.zero_grad()
            table(ids).sum().backward()
            optimizer.step()

        ids = stratagem.PerReplica([torch.tensor([1, 1, 2]), torch.tensor([2, 4])])
        strategy.run(step, args=(ids,))
        change = before - table.weight.detach()
    expected = torch.zeros(ROWS)
    expected[[1, 2, 4]] = torch.tensor([2.0, 2.0, 1.0])
    torch.testing.assert_close(change, expected[:, None].expand(ROWS, 2))


@pytest.mark.parametrize("kind", [nn.Embedding, stratagem.nn.Embedding])
def test_two_synchronous_workers_do_what_one_does_with_both_batches(
    cluster: Cluster, kind: type[nn.Embedding]
) -> None:
    halves = [torch.tensor([1, 1, 2]), torch.tensor([2, 4, 22])]

    def program(strategy: ParameterServerStrategy, worker: int) -> Any:
        torch.manual_seed(8)
        with strategy.scope():
            table = kind(ROWS, 3, sparse=True)
        start = table.weight.detach().clone()
        adagrad = torch.optim.Adagrad(table.parameters(), lr=0.5)
        optimizer = DistributedOptimizer(adagrad, reduce_op="sum")

        def step(ids: torch.Tensor) -> None:
            optimizer.zero_grad()
            table(ids).square().sum().backward()
            optimizer.step()

        strategy.barrier("start")
        for _ in range(4):
            strategy.run(step, args=(halves[worker],))
        strategy.barrier("end")
        return start, table.weight.detach().clone()

    (start, first), (_, second) = cluster.run(program, consistency="sync")
    plain = nn.Embedding.from_pretrained(start, freeze=False, sparse=True)
    optimizer = torch.optim.Adagrad(plain.parameters(), lr=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        plain(torch.cat(halves)).square().sum().backward()
        optimizer.step()
    assert torch.equal(first, second)
    torch.testing.assert_close(first, plain.weight.detach())


def test_another_worker_attaches_to_the_table_and_sees_its_rows(
    cluster: Cluster,
) -> None:
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        tables = []
        for strategy in (chief, worker):
            with strategy.scope():
                tables.append(stratagem.nn.EmbeddingBag(ROWS, 3, mode="sum"))
        sgd = torch.optim.SGD(tables[0].parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd)

        def step() -> None:
            tables[0](torch.tensor([[3]])).sum().backward()
            optimizer.step()

        before = tables[1].weight.detach()
        chief.run(step)
        change = before - tables[1].weight.detach()
    assert change.sum(1).nonzero().flatten().tolist() == [3]


def test_a_program_that_is_started_again_goes_on_with_its_rows(
    cluster: Cluster,
) -> None:
    values: list[torch.Tensor] = []
    for _ in range(2):
        with cluster.strategy() as strategy:
            with strategy.scope():
                table = stratagem.nn.Embedding(ROWS, 3)
            train(strategy, table, OPTIMIZERS["SGD"], steps=1 - len(values))
            values.append(table.weight.detach())
    assert torch.equal(*values)


def test_rows_stay_as_they_were_looked_up_first_until_the_run_ends(
    cluster: Cluster,
) -> None:
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        tables = []
        for strategy in (chief, worker):
            with strategy.scope():
                tables.append(stratagem.nn.Embedding(ROWS, 1))
        sgd = torch.optim.SGD(tables[1].parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd)

        def change() -> None:
            tables[1](torch.tensor([5])).sum().backward()
            optimizer.step()

        def look() -> tuple[float, float]:
            first = tables[0](torch.tensor([4, 5]))[1].item()
            with ThreadPoolExecutor(1) as other:
                other.submit(worker.run, change).result()
            return first, tables[0](torch.tensor([5])).item()

        first, second = chief.run(look)
        later = tables[0](torch.tensor([5])).item()
    assert first == second
    assert later == pytest.approx(first - 1.0)


def test_the_state_dict_of_an_optimizer_over_a_table_is_refused(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table = stratagem.nn.Embedding(ROWS, 3)
    optimizer = DistributedOptimizer(torch.optim.Adagrad(table.parameters()))
    with pytest.raises(UnimplementedError, match=r"'weight'.*stored by rows beside"):
        optimizer.state_dict()


def test_a_sparse_embedding_of_torch_keeps_the_state_dict_of_its_optimizer(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table = nn.Embedding(ROWS, 3, sparse=True)
    theirs = like(table)
    make = OPTIMIZERS["Adagrad"]
    optimizer, plain = (
        DistributedOptimizer(make(table.parameters())),
        make(theirs.parameters()),
    )
    strategy.run(lambda: (table(torch.tensor([1])).sum().backward(), optimizer.step()))
    theirs(torch.tensor([1])).sum().backward()
    plain.step()
    ours, expected = optimizer.state_dict()["state"], plain.state_dict()["state"]
    assert torch.equal(ours[0]["sum"], expected[0]["sum"])


def test_tables_and_dense_layers_are_clipped_by_their_common_norm(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = nn.Sequential(stratagem.nn.Embedding(ROWS, 3), nn.Linear(3, 1))
    plain = nn.Sequential(nn.Embedding(ROWS, 3), nn.Linear(3, 1))
    table, first = model[0], plain[0]
    ids = torch.tensor([1, 4, 1])
    plain.load_state_dict(model.state_dict())
    plain(ids).sum().backward()
    theirs = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)

    def step() -> float:
        model(ids).sum().backward()
        norm = stratagem.nn.clip_grad_norm_(model.parameters(), 0.5)
        grads = [present(one.weight.grad) for one in (table, first)]  # type: ignore[arg-type]
        torch.testing.assert_close(grads[0].to_dense(), grads[1])
        return norm.item()

    assert strategy.run(step) == pytest.approx(theirs.item())


def test_without_servers_the_modules_are_torchs_own() -> None:
    strategy = stratagem.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        table = stratagem.nn.Embedding(ROWS, 3)
        bag = stratagem.nn.EmbeddingBag(ROWS, 3, mode="max")
    assert table.sparse
    assert not bag.sparse
    theirs = like(table)
    optimizer = DistributedOptimizer(OPTIMIZERS["SGD"](table.parameters()))

    def step(ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(table, ids).backward()
        optimizer.step()

    for ids in batches(3):
        strategy.run(step, args=(ids,))
    train_plainly(theirs, OPTIMIZERS["SGD"], steps=3)
    torch.testing.assert_close(table.weight, theirs.weight)
    assert functional.embedding(torch.tensor([0]), bag.weight).shape == (1, 3)
