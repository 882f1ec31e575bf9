"""Tables whose parts take rows in turn, so that popular rows are spread over the servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import AttachmentError, DistributedOptimizer, ParameterServerStrategy
from stratagem.partitioners import MinSizePartitioner
from stratagem_proto.division import PartRows
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.checkpoints import load_from, stored
from tests.client.clusters import Cluster, running
from tests.conftest import TOKEN
from tests.full import a_few
from tests.psserver.wire import RawClient

ROWS = 12_289  # of 64 bytes: three parts and no more
HALF = 8_193  # two parts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = stratagem.nn.Embedding(ROWS, 16, padding_idx=3)
        self.items = stratagem.nn.EmbeddingBag(HALF, 16, mode="sum")
        self.names = stratagem.nn.Embedding(50, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.users(ids) + self.items(ids.unsqueeze(1) % HALF)
        found += self.names(ids % 50)
        return found


class Training:
    """Tables and their optimizer in the scope of a strategy."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.module = Model()
        adagrad = torch.optim.Adagrad(self.module.parameters(), lr=0.1)
        self.optimizer = DistributedOptimizer(adagrad)

    def train(self, steps: int, seed: int) -> torch.Tensor:
        """Trains some of the rows, and returns all."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            ids = torch.randint(0, ROWS, (40,), generator=generator)
            self.strategy.run(self._step, args=(ids,))
        return self.rows()

    def rows(self) -> torch.Tensor:
        tables = self.module.users, self.module.items, self.module.names
        return torch.cat([table.weight.detach().clone() for table in tables])

    def _step(self, ids: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.module(ids).square().sum().backward()
        self.optimizer.step()


def started(cluster: Cluster, shards: int | None, worker: int = 0) -> ParameterServerStrategy:
    """A strategy that divides tables into ranges of rows, or has their parts take rows in turn."""
    # As tables were divided before parts took rows in turn.
    partitioner = None if shards is None else MinSizePartitioner(256 << 10, shards)
    return cluster.strategy(worker, variable_partitioner=partitioner)


def specs(strategy: ParameterServerStrategy) -> dict[str, VariableSpec]:
    extended: Any = strategy.extended
    return {part.name: part.spec for table in extended._hosting._tables for part in table.parts}


def test_parts_of_a_table_take_rows_in_turn_and_a_small_one_has_none() -> None:
    with running(4) as cluster, started(cluster, None) as strategy:
        training = Training(strategy)
        shapes = {name: spec.tensor.shape[0] for name, spec in specs(strategy).items()}
        assert shapes == {
            "users.weight/part_0": 4097,
            "users.weight/part_1": 4096,
            "users.weight/part_2": 4096,
            "items.weight/part_0": 4097,
            "items.weight/part_1": 4096,
            "names.weight": 50,
        }
        weight = training.module.users.weight
        assert not weight[3].any()
        with torch.no_grad():
            weight.copy_(torch.arange(ROWS * 16.0).reshape(ROWS, 16))
        assert torch.equal(weight.detach(), torch.arange(ROWS * 16.0).reshape(ROWS, 16))
        ids = torch.tensor([[7, 0], [ROWS - 1, 7]])
        expected = torch.arange(ROWS * 16.0).reshape(ROWS, 16)[ids]
        assert torch.equal(training.module.users(ids).detach(), expected)
        state = training.module.state_dict()
        training.module.load_state_dict({name: value + 1 for name, value in state.items()})
        assert torch.equal(training.module.users(ids).detach(), expected + 1)


@pytest.mark.full("test_tables.py trains rows beside torch in any number of shards")
def test_rows_train_to_the_same_values_however_they_are_divided() -> None:
    found = []
    for servers, shards in ((1, None), (2, None), (3, None), (2, 2)):
        torch.manual_seed(5)
        with running(servers) as cluster, started(cluster, shards) as strategy:
            found.append(Training(strategy).train(5, seed=1))
    assert all(torch.equal(found[0], other) for other in found[1:])


@a_few(
    "before,after",
    [
        # The servers, and the ranges of rows that there are of each table, or None.
        ((2, 2), (2, None)),
        ((3, 3), (2, None)),
        ((2, None), (3, None)),
        ((3, None), (1, None)),
        ((2, None), (3, 3)),
        ((1, None), (3, None)),
    ],
    "one change of the division stands for the others",
    2,
)
def test_a_checkpoint_of_any_division_goes_on_in_another(
    before: tuple[int, int | None], after: tuple[int, int | None], tmp_path: Path
) -> None:
    with running(before[0]) as cluster, started(cluster, before[1]) as strategy:
        training = Training(strategy)
        then = training.train(4, seed=1)
        strategy.save(tmp_path / "one")
        expected = training.train(3, seed=2)
    index = Path(str(open_checkpoint(tmp_path / "one").folder)) / "index.json"
    assert ('"format":4' in index.read_text()) == (before[1] is None and before[0] > 1)
    torch.manual_seed(99)  # rows that were not written are as they were all the same
    with running(after[0]) as cluster, started(cluster, after[1]) as strategy:
        training = Training(strategy)
        training.train(2, seed=3)
        strategy.restore(tmp_path / "one").assert_consumed()
        assert torch.equal(training.rows(), then)
        strategy.save(tmp_path / "two")
        assert stored(tmp_path / "two") == stored(tmp_path / "one")
        both = load_from(tmp_path / "one"), load_from(tmp_path / "two")
        assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])
        assert torch.equal(training.train(3, seed=2), expected)
        strategy.save(tmp_path / "two", incremental=True)
        assert torch.equal(load_from(tmp_path / "two")["users.weight"], expected[:ROWS])


@pytest.mark.full("who comes later follows the division that there is")
def test_servers_that_begin_with_ranges_of_rows_keep_them(tmp_path: Path) -> None:
    with running(2) as cluster, started(cluster, 2) as strategy:
        training = Training(strategy)
        then = training.train(4, seed=1)
        ranges = {name: spec.partition for name, spec in specs(strategy).items()}
        strategy.save(tmp_path)
        expected = training.train(3, seed=2)
    with running(2, restore=str(tmp_path)) as cluster, started(cluster, None) as strategy:
        training = Training(strategy)
        assert {name: spec.partition for name, spec in specs(strategy).items()} == ranges
        assert torch.equal(training.rows(), then)
        assert torch.equal(training.train(3, seed=2), expected)


@a_few("first,second", [(2, None), (None, 2)], "the division is read from servers in the same way")
def test_who_comes_later_follows_the_division_that_the_servers_have(
    first: int | None, second: int | None
) -> None:
    with running(2, num_workers=2) as cluster:
        with started(cluster, first) as strategy:
            there = Training(strategy).train(3, seed=1)
            parts = {
                name: spec.partition
                for name, spec in specs(strategy).items()
                if name.startswith(("users", "items"))
            }
        with started(cluster, second) as chief:
            training = Training(chief)
            assert {name: specs(chief)[name].partition for name in parts} == parts
            assert torch.equal(training.rows(), there)
            with started(cluster, second, worker=1) as worker:
                other = Training(worker)
                assert {name: specs(worker)[name].partition for name in parts} == parts
                now = training.train(3, seed=2)
                assert torch.equal(other.rows(), now)
    with running(1) as cluster, started(cluster, None) as strategy:
        alone = Training(strategy)
        assert torch.equal(alone.train(3, seed=1), there)
        assert torch.equal(alone.train(3, seed=2), now)


COLUMNS = [40_000 // rank for rank in range(1, 27)]
"""Rows of the tables of a click model; the first four are divided, the others are whole."""


@a_few("placement", ["round_robin", "balanced"], "the balanced placement has tests of its own")
@a_few("servers", [2, 3], "two servers show how rows are dealt")
def test_servers_train_as_many_rows_as_each_other_though_popular_ids_are_low(
    servers: int, placement: str
) -> None:
    with running(servers) as cluster, cluster.strategy(placement=placement) as strategy:
        with strategy.scope():
            model = nn.ModuleList(stratagem.nn.Embedding(rows, 16) for rows in COLUMNS)
        optimizer = DistributedOptimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))

        def step(ids: torch.Tensor) -> None:
            optimizer.zero_grad()
            pairs = list(zip(model, ids, strict=True))
            stratagem.nn.prefetch(pairs)
            torch.stack([table(each) for table, each in pairs]).square().sum().backward()
            optimizer.step()

        generator = torch.Generator().manual_seed(7)
        for _ in range(4):
            uniform = torch.rand(26, 512, generator=generator)
            rows = torch.tensor(COLUMNS).unsqueeze(1)
            # Ranks by Zipf's law, of which the first is the most popular id.
            strategy.run(step, args=((rows + 1.0).pow(uniform).long() - 1,))
        trained = _trained_rows(strategy)
    assert max(trained) < 1.1 * min(trained)


def _trained_rows(strategy: ParameterServerStrategy) -> list[int]:
    """How many rows each server has stored, which are those that were trained."""
    listing = _store(strategy).listing()
    return [sum(info.table.rows for info in listed.variables) for listed in listing.values()]


def test_parts_that_an_earlier_run_lacks_are_made_as_its_others_are_divided() -> None:
    with running(2) as cluster:
        with started(cluster, 2) as strategy:
            Training(strategy)
            users = [spec for name, spec in specs(strategy).items() if name.startswith("users")]
            _store(strategy).delete([(1, users[1].name)])
        with started(cluster, None) as strategy:
            Training(strategy)
            parts = [specs(strategy)[spec.name].partition for spec in users]
    assert parts == [spec.partition for spec in users]
    assert [part.offset[0] for part in parts] == [0, 6145]


def test_parts_that_are_divided_in_two_ways_are_refused() -> None:
    with running(2) as cluster:
        with started(cluster, 2) as strategy:
            Training(strategy)
            (other,) = (
                spec for name, spec in specs(strategy).items() if name == "users.weight/part_1"
            )
            _store(strategy).delete([(1, other.name)])
        other.partition.CopyFrom(PartRows.of_shard(ROWS, 1, 2, True).partition((ROWS, 16)))
        with RawClient(cluster.servers[1], TOKEN) as client:
            client.open()
            client.create_as([other], [])
        refused = pytest.raises(AttachmentError, match="where the other parts of the table leave")
        with started(cluster, None) as strategy, refused as caught:
            Training(strategy)
    assert caught.value.variable == "users.weight/part_0"
    assert "from row 0 of" in str(caught.value)
    assert "every 2 rows from row 0 of" in str(caught.value)


def test_a_table_is_used_on_the_server_that_an_earlier_release_has_put_it_on() -> None:
    with running(2, num_workers=2) as cluster:
        with started(cluster, None) as strategy:
            there = Training(strategy)
            spec, rows = specs(strategy)["names.weight"], there.rows()
            assert spec.device.startswith("/job:ps/replica:0/task:0/")
            _store(strategy).delete([(0, spec.name)])
        with RawClient(cluster.servers[1], TOKEN) as client:
            client.open()
            client.create_as([spec], [])
        with started(cluster, None) as chief, started(cluster, None, worker=1) as worker:
            trainings = Training(chief), Training(worker)
            assert torch.equal(trainings[0].rows(), rows)
            now = trainings[0].train(1, seed=1)
            assert torch.equal(trainings[1].rows(), now)
            assert specs(worker)["names.weight"].device.startswith("/job:ps/replica:0/task:1/")


def _store(strategy: ParameterServerStrategy) -> Any:
    extended: Any = strategy.extended
    return extended._store
