"""Tables of modules whose rows servers store in fewer bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import DistributedOptimizer, InvalidArgumentError, ParameterServerStrategy
from stratagem.nn import DynamicEmbedding, Embedding, EmbeddingBag
from stratagem.optim import RowWiseAdagrad
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.checkpoints import stored
from tests.client.clusters import running
from tests.deploy.checkpoints.test_table_checkpoints import answer, call
from tests.full import a_few

ROWS, WIDTH = 40, 16
BFLOAT16 = torch.bfloat16


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        yield strategy


class Model(nn.Module):
    def __init__(self, row_dtype: torch.dtype | None) -> None:
        super().__init__()
        self.users = Embedding(ROWS, WIDTH, row_dtype=row_dtype)
        self.words = EmbeddingBag(ROWS, WIDTH, mode="sum", row_dtype=row_dtype)
        self.items = DynamicEmbedding(WIDTH, row_dtype=row_dtype)
        # Random ones depend on the names.
        for number, weight in enumerate(self.parameters()):
            nn.init.constant_(weight, 0.3 - 0.1 * number)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.users(rows) + self.words(rows[:, None]) + self.items(rows)
        return found

    def values(self) -> list[torch.Tensor]:
        each = torch.arange(ROWS)
        tables = self.users(each), self.words(each[:, None]), self.items(each)
        return [found.detach() for found in tables]


def trained(
    strategy: ParameterServerStrategy, row_dtype: torch.dtype | None, steps: int = 40
) -> Model:
    torch.manual_seed(2)
    with strategy.scope():
        model = Model(row_dtype)
    optimizer = DistributedOptimizer(RowWiseAdagrad(model.parameters(), lr=0.05))
    train(strategy, model, optimizer, steps)
    return model


def train(strategy: ParameterServerStrategy, model: Model, optimizer: Any, steps: int) -> None:
    targets = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(3)

    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        (model(rows) - targets[rows]).square().mean().backward()
        optimizer.step()

    for _ in range(steps):
        strategy.run(step, args=(torch.randint(0, ROWS, (16,), generator=generator),))


@pytest.mark.full("rows are rounded by servers, beside what torch rounds")
@a_few("dtype", [BFLOAT16, torch.float16], "bfloat16 and float16 are converted by the same lines")
def test_lookups_are_float32_and_training_is_as_without(
    strategy: ParameterServerStrategy, dtype: torch.dtype
) -> None:
    model = trained(strategy, dtype)
    expected = trained(strategy, None).values()
    for found, wide in zip(model.values(), expected, strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(found, found.to(dtype).float())
        # Within a few of the last digits.
        assert (found - wide).abs().max() < 20 * torch.finfo(dtype).eps
    assert model.users.weight.dtype == torch.float32


def test_a_table_may_be_read_loaded_and_written(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        table = Embedding(ROWS, 2, row_dtype=BFLOAT16)
    whole = table.state_dict()["weight"].clone()
    assert torch.equal(whole, whole.to(BFLOAT16).float())
    value = torch.randn(ROWS, 2)
    table.load_state_dict({"weight": value})
    found = table.weight.detach()
    assert torch.equal(found, found.to(BFLOAT16).float())
    assert (found - value).abs().max() <= value.abs().max() * 2**-7


@pytest.mark.full("a checkpoint of such rows is read by the next test")
def test_checkpoints_keep_the_bytes_on_any_number_of_servers(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        model = trained(strategy, BFLOAT16)
        strategy.save(tmp_path / "one")
        expected = model.values()
    entries = open_checkpoint(tmp_path / "one").index.tensors
    rows = [one for name, one in entries.items() if name.startswith("users.weight")]
    sizes = {one.name: one.nbytes // max(1, one.rows.count) for one in rows if one.rows}
    assert {*sizes.values()} == {2 * WIDTH, 4}
    path = answer("reshard", tmp_path / "one", tmp_path / "new", "--servers", 3)["path"]
    call("verify", path)
    assert answer("diff", tmp_path / "one", path) == {"differences": {}}
    for place, servers in ((tmp_path / "one", 1), (Path(path), 3)):
        with running(servers) as cluster, cluster.strategy() as strategy:
            with strategy.scope():
                model = Model(BFLOAT16)
            DistributedOptimizer(RowWiseAdagrad(model.parameters(), lr=0.05))
            strategy.restore(place).assert_consumed()
            assert all(map(torch.equal, model.values(), expected))
            strategy.save(tmp_path / f"again-{servers}")
        assert stored(tmp_path / f"again-{servers}") == stored(tmp_path / "one")


def test_a_checkpoint_is_read_into_rows_of_another_dtype(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        expected = trained(strategy, None).values()
        strategy.save(tmp_path)
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = Model(BFLOAT16)
        DistributedOptimizer(RowWiseAdagrad(model.parameters(), lr=0.05))
        strategy.restore(tmp_path)
        for found, wide in zip(model.values(), expected, strict=True):
            assert torch.equal(found, wide.to(BFLOAT16).float())


def test_elsewhere_rows_keep_their_dtype() -> None:
    with stratagem.OneDeviceStrategy("CPU:0").scope():
        table = Embedding(3, 2, row_dtype=BFLOAT16)
    assert table.weight.dtype == torch.float32


def test_what_cannot_be_rounded_is_refused(strategy: ParameterServerStrategy) -> None:
    with pytest.raises(InvalidArgumentError, match=r"row_dtype is torch\.int8; rows are"):
        Embedding(3, 2, row_dtype=torch.int8)
    with (
        pytest.raises(InvalidArgumentError, match=r"but it is torch\.float64"),
        strategy.scope(),
    ):
        wide = Embedding(3, 2, row_dtype=BFLOAT16, dtype=torch.float64)
    with (
        pytest.raises(InvalidArgumentError, match="but it has a whole value"),
        strategy.scope(),
    ):
        given = Embedding(3, 2, row_dtype=BFLOAT16)
        given.weight.data = torch.ones(3, 2)
    assert wide.row_dtype == given.row_dtype == BFLOAT16


def test_modules_that_share_rows_agree_on_their_dtype(strategy: ParameterServerStrategy) -> None:
    with (
        pytest.raises(InvalidArgumentError, match="is shared by modules with rows of"),
        strategy.scope(),
    ):
        one = Embedding(3, 2, row_dtype=BFLOAT16)
        other = Embedding(3, 2, row_dtype=torch.float16)
        other.weight = one.weight
    assert other.weight is one.weight
