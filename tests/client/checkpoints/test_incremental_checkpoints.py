"""Saving only what differs from the latest checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import stratagem
from stratagem import DistributedOptimizer, InvalidArgumentError, ParameterServerStrategy
from stratagem.nn import DynamicEmbedding, Embedding
from stratagem.optim import RowWiseAdagrad
from stratagem_proto.wire.tensors import as_bytes
from stratagem_storage.checkpoint.folder import Checkpoint, open_checkpoint
from tests.checkpoints import load_from
from tests.client.checkpoints.training import sharding
from tests.client.clusters import running

ROWS, WIDTH = 4000, 16
PART = "part-0.safetensors"


class Training:
    """Tables that evict, a table with fixed rows and a dense layer, and their optimizer."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.fixed = Embedding(ROWS, WIDTH)
            limits = {"max_idle": 6, "admit_after": 2, "max_bytes": 16_000}
            half = {"row_dtype": torch.bfloat16, "evict": "rarest"}
            self.dynamic = DynamicEmbedding(WIDTH, **cast("Any", limits | half))
            self.dense = nn.Linear(WIDTH, 1)
            self.still = stratagem.Variable(torch.rand(50, WIDTH), name="still")
        self.optimizers = [
            DistributedOptimizer(torch.optim.SparseAdam(self.fixed.parameters(), lr=0.1)),
            DistributedOptimizer(RowWiseAdagrad(self.dynamic.parameters(), lr=0.1)),
            DistributedOptimizer(torch.optim.Adam(self.dense.parameters(), lr=0.1)),
        ]

    def train(self, seed: int, steps: int = 4) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            keys = torch.randint(0, ROWS, (30,), generator=generator)
            self.strategy.run(self._step, args=(keys, keys % 100))

    def _step(self, rows: torch.Tensor, keys: torch.Tensor) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.dense(self.fixed(rows) + self.dynamic(keys)).square().mean().backward()
        for optimizer in self.optimizers:
            optimizer.step()


def everything(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The bytes of each tensor of each server, as they are stored, and what is said of it."""
    return {
        name: entry.spec.SerializeToString(deterministic=True)
        + str(entry.rows).encode()
        + bytes(as_bytes(checkpoint.tensor(entry)))
        for name, entry in checkpoint.index.tensors.items()
    }


def nbytes(checkpoint: Checkpoint) -> int:
    return sum(file.nbytes for file in checkpoint.index.files.values())


@pytest.mark.full("restored on other servers, a shorter chain is compared as well")
def test_it_is_byte_for_byte_what_a_whole_one_is(tmp_path: Path) -> None:
    """With rows that are evicted, admitted and changed in between; over a whole chain."""
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        for number in range(11):
            training.train(seed=number)
            strategy.save(tmp_path / "some", incremental=True, keep=20)
            strategy.save(tmp_path / "all")
            some, whole = open_checkpoint(tmp_path / "some"), open_checkpoint(tmp_path / "all")
            assert everything(some) == everything(whole)
            assert whole.index.base is None
            assert len(some.index.bases) == number % 9
            some.verify()


@pytest.mark.full("whole checkpoints are read by any number of servers")
def test_any_number_of_servers_restores_it(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        for number in range(3):
            training.train(seed=number)
            strategy.save(tmp_path / "some", incremental=True)
        strategy.save(tmp_path / "all")
        expected = training.fixed.weight.detach().clone()
    states = []
    for name in ("some", "all"):
        with running(3) as cluster, cluster.strategy() as strategy:
            training = Training(strategy)
            strategy.restore(tmp_path / name)
            assert torch.equal(training.fixed.weight, expected)
            training.train(seed=9)
            strategy.save(tmp_path / f"{name} again")
            states.append(everything(open_checkpoint(tmp_path / f"{name} again")))
    assert states[0] == states[1]


def test_a_hundredth_of_the_rows_is_a_few_hundredths_of_the_bytes(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            table = Embedding(20_000, WIDTH)
        optimizer = DistributedOptimizer(torch.optim.SparseAdam(table.parameters(), lr=0.1))

        def step(rows: torch.Tensor) -> None:
            optimizer.zero_grad()
            table(rows).sum().backward()
            optimizer.step()

        strategy.run(step, args=(torch.arange(20_000),))
        strategy.save(tmp_path, incremental=True)
        whole = nbytes(open_checkpoint(tmp_path))
        strategy.run(step, args=(torch.randperm(20_000)[:200],))
        strategy.save(tmp_path, incremental=True)
    assert nbytes(open_checkpoint(tmp_path)) < 0.03 * whole


def test_what_is_new_is_saved_whole_and_what_is_not_there_any_more_is_left_out(
    tmp_path: Path,
) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            stratagem.Variable(torch.ones(100, 2), name="first")
        strategy.save(tmp_path, incremental=True)
        with strategy.scope():
            second = stratagem.Variable(torch.zeros(100, 2), name="second")
        strategy.save(tmp_path, incremental=True)
        second.assign_add(torch.ones(100, 2))
        strategy.save(tmp_path, incremental=True)
    tensors = open_checkpoint(tmp_path).index.tensors
    assert tensors["first"].changed is not None
    assert tensors["first"].changed.count == 0
    assert tensors["second"].changed is None, "all its rows differ"


def test_other_servers_go_on_with_it(tmp_path: Path) -> None:
    """Other parts of a variable are on each."""
    for number, servers in enumerate((2, 3, 1)):
        with running(servers) as cluster, sharding(cluster, servers) as strategy:
            with strategy.scope():
                value = stratagem.Variable(torch.zeros(30, 2), name="v")
            if number:
                strategy.restore(tmp_path)
            value.assign_add(torch.arange(60.0).reshape(30, 2))
            strategy.save(tmp_path, incremental=True)
            assert value.numpy().sum() == (number + 1) * 1770
        assert load_from(tmp_path)["v"].sum() == (number + 1) * 1770


def test_damage_to_the_latest_one_costs_bytes_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            stratagem.Variable(torch.rand(500, 2), name="v")
        strategy.save(tmp_path, incremental=True)
        part = tmp_path / "checkpoint-1" / PART
        part.write_bytes(part.read_bytes()[:-1] + b"\xff\xff")
        with caplog.at_level(logging.WARNING):
            strategy.save(tmp_path, incremental=True)
        assert "saves all rows" in caplog.text
        (tmp_path / "checkpoint-2" / "index.json").write_bytes(b"{}")
        with caplog.at_level(logging.WARNING):
            strategy.save(tmp_path, incremental=True)
        assert "the next checkpoint will have all rows" in caplog.text
    latest = open_checkpoint(tmp_path)
    latest.verify()
    assert latest.index.base is None


def test_a_file_has_no_latest_one(tmp_path: Path) -> None:
    strategy = ParameterServerStrategy()
    with pytest.raises(InvalidArgumentError, match="leave keep, extra and incremental out"):
        strategy.save(tmp_path / "model.safetensors", incremental=True)
