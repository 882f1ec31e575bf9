"""Checkpoints of tables of which servers store the rows that were written."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.nn import DynamicEmbedding, Embedding, EmbeddingBag
from stratagem.optim import RowWiseAdagrad
from stratagem.partitioners import FixedShardsPartitioner
from stratagem_proto.v1.variable_pb2 import TableStatistics
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.checkpoints import stored
from tests.client.clusters import Cluster, running
from tests.full import a_few

ROWS = 23
KEYS = torch.arange(40) * 2**55 - 2**60
SAVES = 20
KINDS = 200


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = Embedding(ROWS, 3)
        self.words = EmbeddingBag(ROWS, 3, mode="sum")
        self.items = DynamicEmbedding(3)
        nn.init.uniform_(self.words.weight, -0.5, 0.5)
        nn.init.trunc_normal_(self.items.weight, std=0.5, b=0.25)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.users(places) + self.items(KEYS[places])
        found += self.words(places.unsqueeze(1))
        return found


class Training:
    """Tables and their optimizer in the scope of a strategy."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        kind: Callable[..., torch.optim.Optimizer] = torch.optim.SparseAdam,
    ) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.module = Model()
        self.optimizer = DistributedOptimizer(kind(self.module.parameters(), lr=0.1))

    def train(self, steps: int, seed: int) -> torch.Tensor:
        """Trains some of the rows, and returns all."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            places = torch.randint(0, ROWS - 5, (6,), generator=generator)
            self.strategy.run(self._step, args=(places,))
        return self.rows()

    def rows(self) -> torch.Tensor:
        places = torch.arange(ROWS)
        tables = self.module.users, self.module.words
        whole = [table.weight.detach().clone() for table in tables]
        return torch.cat([*whole, self.module.items(KEYS[places]).detach()])

    def _step(self, places: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.module(places).square().sum().backward()
        self.optimizer.step()


def sharding(cluster: Cluster, shards: int) -> ParameterServerStrategy:
    return cluster.strategy(variable_partitioner=FixedShardsPartitioner(shards))


@a_few(
    "kind",
    [torch.optim.SparseAdam, RowWiseAdagrad],
    "a checkpoint has the rows of all optimizers in one form",
)
@a_few(
    "before,after",
    [
        *((1, 3), (2, 2), (3, 2)),
        *(pytest.param(*each, marks=pytest.mark.long) for each in [(1, 1), (2, 1), (3, 5), (5, 3)]),
    ],
    "fewer servers read the parts of more ones as more do",
)
def test_training_goes_on_with_the_same_rows_on_any_number_of_servers(
    before: int, after: int, kind: type[torch.optim.Optimizer], tmp_path: Path
) -> None:
    with running(before) as cluster, sharding(cluster, before) as strategy:
        training = Training(strategy, kind)
        then = training.train(4, seed=1)
        strategy.save(tmp_path / "one")
        expected = training.train(3, seed=2)
    torch.manual_seed(99)  # rows that were not written are as they were all the same
    with running(after) as cluster, sharding(cluster, after) as strategy:
        training = Training(strategy, kind)
        training.train(2, seed=3)
        strategy.restore(tmp_path / "one").assert_consumed()
        assert torch.equal(training.rows(), then)
        strategy.save(tmp_path / "two")
        assert stored(tmp_path / "two") == stored(tmp_path / "one")
        assert torch.equal(training.train(3, seed=2), expected)


def test_tables_that_are_made_later_start_with_their_rows(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        expected = Training(strategy).train(3, seed=1)
        strategy.save(tmp_path)
    torch.manual_seed(99)
    with running(3) as cluster, cluster.strategy() as strategy:
        status = strategy.restore(tmp_path)
        assert "items.weight" in status.unused
        training = Training(strategy)
        status.assert_consumed()
        assert torch.equal(training.rows(), expected)


@pytest.mark.full("steps of workers are counted alike for dense variables")
def test_a_checkpoint_has_the_same_steps_of_workers_in_all_tables(
    tmp_path: Path,
) -> None:
    """Two workers count in a row of their own, and in one that they share."""
    saved = threading.Event()

    def program(strategy: ParameterServerStrategy, worker: int) -> int:
        with strategy.scope():
            tables = nn.ModuleList(Embedding(4, 2) for _ in range(5))
            for weight in tables.parameters():
                nn.init.zeros_(weight)
        sgd = torch.optim.SGD(tables.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd)
        mine = torch.tensor([0, worker])

        def step() -> None:
            optimizer.zero_grad()
            sum(-table(mine).sum() for table in tables).backward()
            optimizer.step()

        steps = 0
        if not worker:
            _save_at_random(strategy, tmp_path)
            saved.set()
        while worker and not saved.is_set():
            strategy.run(step)
            steps += 1
        return steps

    with running(3, num_workers=3) as cluster:
        steps = cluster.run(program)
    seen = set[float]()
    for number in range(SAVES):
        tables = stored(tmp_path / f"checkpoint-{number + 1}")
        counts = [_counts(table) for table in tables.values()]
        assert counts == [counts[0]] * 5
        assert counts[0][0] == counts[0][1] + counts[0][2]
        seen.add(counts[0][0])
    assert len(seen) > SAVES / 2
    assert max(seen) <= sum(steps)


def _save_at_random(strategy: ParameterServerStrategy, root: Path) -> None:
    generator = random.Random(7)
    for _ in range(SAVES):
        time.sleep(generator.random() * 0.02)
        strategy.save(root, keep=SAVES)


def _counts(rows: dict[int, list[float]]) -> list[float]:
    return [rows.get(row, [0.0])[0] for row in range(3)]


LIMITS: list[dict[str, Any]] = [
    {"admit_after": 3},
    {"max_idle": 4},
    {"max_bytes": 6_500, "admit_after": 2},
    {"max_bytes": 6_500, "evict": "rarest"},
]


@a_few("limits", LIMITS, "each limit has its own test on a server", ids=str)
def test_admission_and_eviction_go_on_as_if_nothing_had_been(
    limits: dict[str, Any], tmp_path: Path
) -> None:
    def trained(strategy: ParameterServerStrategy, path: Path) -> list[torch.Tensor]:
        with strategy.scope():
            table = DynamicEmbedding(2, **limits)
        adagrad = torch.optim.Adagrad(table.parameters(), lr=0.5)
        optimizer = DistributedOptimizer(adagrad)

        def step(keys: torch.Tensor) -> None:
            optimizer.zero_grad()
            table(keys).square().sum().backward()
            optimizer.step()

        def train(seed: int) -> list[torch.Tensor]:
            generator = torch.Generator().manual_seed(seed)
            found = []
            for _ in range(10):
                keys = torch.randint(0, KINDS, (30,), generator=generator)
                strategy.run(step, args=(keys,))
                found.append(table(torch.arange(KINDS)).detach())
            return found

        if path.exists():
            strategy.restore(path).assert_consumed()
        else:
            train(1)
            strategy.save(path)
        return train(2)

    with running(2) as cluster, cluster.strategy() as strategy:
        expected = trained(strategy, tmp_path / "run")
    with running(2) as cluster, cluster.strategy() as strategy:
        found = trained(strategy, tmp_path / "run")
        assert all(map(torch.equal, found, expected))
        path = tmp_path / "again"
        strategy.save(path)
        moved = _counted(strategy)
    assert moved["evicted_rows"] + moved["dropped_gradients"] > 0
    with running(3) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            table = DynamicEmbedding(2, **limits)
        strategy.restore(path).assert_consumed()
        if "max_bytes" in limits:
            # Shares of three are smaller.
            assert 0 < _statistics(strategy)["bytes"] <= limits["max_bytes"]
            return
        assert _counted(strategy) == moved
        assert torch.equal(table(torch.arange(KINDS)), found[-1])


def _statistics(strategy: ParameterServerStrategy) -> dict[str, int]:
    """The statistics of all parts added up."""
    listing = strategy.extended._store.listing()  # type: ignore[union-attr]
    infos = [info.table for listed in listing.values() for info in listed.variables]
    names = [field.name for field in TableStatistics.DESCRIPTOR.fields]
    return {name: sum(getattr(one, name) for one in infos) for name in names}


def _counted(strategy: ParameterServerStrategy) -> dict[str, int]:
    return {k: n for k, n in _statistics(strategy).items() if k != "bytes"}


def test_a_table_is_restored_where_all_rows_are_stored_and_the_other_way(
    tmp_path: Path,
) -> None:
    with running(2) as cluster, sharding(cluster, 2) as strategy:
        with strategy.scope():
            table = Embedding(ROWS, 3)
        optimizer = DistributedOptimizer(torch.optim.Adagrad(table.parameters(), lr=0.5))
        strategy.run(lambda: (table(torch.arange(4)).sum().backward(), optimizer.step()))
        expected = table.weight.detach().clone()
        strategy.save(tmp_path / "run")
    alone = stratagem.OneDeviceStrategy("CPU:0")
    with alone.scope():
        plain = nn.Embedding(ROWS, 3)
    DistributedOptimizer(torch.optim.Adagrad(plain.parameters(), lr=0.5))
    alone.restore(tmp_path / "run")
    assert torch.equal(plain.weight, expected)
    alone.save(tmp_path / "file")
    with running(3) as cluster, sharding(cluster, 3) as strategy:
        with strategy.scope():
            table = Embedding(ROWS, 3)
        strategy.restore(tmp_path / "file")
        assert torch.equal(table.weight.detach(), expected)


def test_a_dynamic_table_is_not_read_without_servers(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            table = DynamicEmbedding(2)
        assert table(KEYS).shape == (40, 2)
        strategy.save(tmp_path)
    alone = stratagem.OneDeviceStrategy("CPU:0")
    with pytest.raises(stratagem.InvalidArgumentError, match="--stored-rows"):
        alone.restore(tmp_path)


def test_damaged_rows_are_noticed_and_nothing_is_changed(tmp_path: Path) -> None:
    with running(2) as cluster, sharding(cluster, 2) as strategy:
        training = Training(strategy)
        training.train(3, seed=1)
        strategy.save(tmp_path)
        expected = training.train(1, seed=2)
        index = open_checkpoint(tmp_path).index
        entry = index.tensors["users.weight/part_1[keys]"]
        part = tmp_path / "checkpoint-1" / entry.file
        data = bytearray(part.read_bytes())
        data[entry.begin] ^= 1
        part.write_bytes(data)
        with pytest.raises(stratagem.DataLossError, match=r"users\.weight/part_1"):
            strategy.restore(tmp_path)
        assert torch.equal(training.rows(), expected)
