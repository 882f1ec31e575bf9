"""Models with tables as files that plain PyTorch loads, and the way back."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import stratagem
from stratagem import InvalidArgumentError, ParameterServerStrategy
from stratagem.nn import DynamicEmbedding, Embedding, EmbeddingBag
from stratagem_storage.checkpoint.plain import SHARD_LIST
from tests.client.clusters import Cluster, running

ROWS, SIZE = 3000, 8
META_ABOVE = 20_000  # so that the first table is too large, and the second is not
KEYS = torch.arange(40) * 2**55 - 2**60


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(ROWS, SIZE)
        self.words = EmbeddingBag(50, SIZE, mode="sum")
        self.norm = nn.BatchNorm1d(SIZE)

    def forward(self, users: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        answers: torch.Tensor = self.norm(self.users(users) + self.words(words))
        return answers


class WithKeys(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.films = Embedding(ROWS, SIZE)
        self.items = DynamicEmbedding(SIZE)

    def forward(self, films: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        answers: torch.Tensor = self.films(films) + self.items(items)
        return answers


BATCH = torch.arange(0, ROWS, 100), torch.arange(90).reshape(30, 3) % 50
KEYED_BATCH = torch.arange(0, 4000, 100) % ROWS, KEYS


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(2) as found:
        yield found


def build(strategy: stratagem.Strategy, kind: type[nn.Module]) -> nn.Module:
    if isinstance(strategy, ParameterServerStrategy):
        with strategy.scope(meta_above=META_ABOVE):
            return kind()
    with strategy.scope():
        return kind()


def trained(strategy: ParameterServerStrategy, model: nn.Module, *batch: torch.Tensor) -> None:
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.1)
    optimizer = stratagem.DistributedOptimizer(adagrad)

    def step() -> None:
        optimizer.zero_grad()
        model(*batch).pow(2).sum().backward()
        optimizer.step()

    for _ in range(3):
        strategy.run(step)


def answers(model: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        found: torch.Tensor = model(*batch)
    return found


@pytest.mark.parametrize("way", ["a file", "shards", "load_state_dict"])
def test_a_plain_model_answers_as_the_cluster_does_and_so_does_another_cluster(
    cluster: Cluster, tmp_path: Path, way: str
) -> None:
    path = tmp_path / "model.safetensors"
    shard_bytes = 40_000 if way == "shards" else None
    with cluster.strategy() as strategy:
        model = build(strategy, Model)
        trained(strategy, model, *BATCH)
        strategy.export(model, path, shard_bytes=shard_bytes)
        expected = answers(model, *BATCH)

    alone = stratagem.OneDeviceStrategy("CPU:0")
    here = build(alone, Model)
    alone.restore(path).assert_consumed()
    assert torch.equal(answers(here, *BATCH), expected)
    if way != "shards":
        plain = Model()
        plain.load_state_dict(load_file(path))
        assert torch.equal(answers(plain, *BATCH), expected)

    with running(3) as others, others.strategy() as strategy:
        again = build(strategy, Model)
        if way == "load_state_dict":
            again.load_state_dict(load_file(path))
        else:
            strategy.restore(path).assert_consumed()
        assert torch.equal(answers(again, *BATCH), expected)


def test_stored_rows_go_home_with_their_keys_and_come_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    with cluster.strategy() as strategy:
        model = build(strategy, WithKeys)
        trained(strategy, model, *KEYED_BATCH)
        with pytest.raises(InvalidArgumentError, match="stored_rows=True"):
            strategy.export(model, path)
        strategy.export(model, path, stored_rows=True)
        expected = answers(model, *KEYED_BATCH)
        others = answers(model, torch.tensor([1, 2]), torch.tensor([5, 6]))

    state = load_file(path)
    assert torch.equal(state["items.weight[keys]"], KEYS.sort().values)
    assert torch.equal(state["films.weight[keys]"], KEYED_BATCH[0].unique())
    films = torch.searchsorted(state["films.weight[keys]"], KEYED_BATCH[0])
    items = torch.searchsorted(state["items.weight[keys]"], KEYED_BATCH[1])
    found = state["films.weight"][films] + state["items.weight"][items]
    assert torch.equal(found, expected)

    with running(3) as more, more.strategy() as strategy:
        again = build(strategy, WithKeys)
        strategy.restore(path).assert_consumed()
        assert torch.equal(answers(again, *KEYED_BATCH), expected)
        # The file says how rows begin that nobody has trained.
        assert torch.equal(answers(again, torch.tensor([1, 2]), torch.tensor([5, 6])), others)


def test_what_has_no_room_for_a_table_says_how_it_goes_home(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        model = build(strategy, Model)
        for use in (model.state_dict, lambda: copy.deepcopy(model)):
            with pytest.raises(InvalidArgumentError, match=r"strategy\.export\(module, PATH\)"):
                use()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = stratagem.DistributedOptimizer(sgd)
        with pytest.raises(stratagem.UnimplementedError, match=r"strategy\.save\(FOLDER\)"):
            optimizer.state_dict()
        with pytest.raises(stratagem.UnimplementedError, match=r"strategy\.export\(model, PATH\)"):
            strategy.state_dict()


def test_a_file_is_of_one_moment_and_replaces_an_earlier_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"an earlier one")
    with cluster.strategy() as strategy:
        model = build(strategy, Model)
        trained(strategy, model, *BATCH)
        with strategy.snapshot():
            expected = answers(model, *BATCH)
            strategy.export(model, path)
        plain = Model()
        plain.load_state_dict(load_file(path))
        assert torch.equal(answers(plain, *BATCH), expected)


def test_shards_are_of_the_size_that_was_asked_for_and_replace_earlier_ones(tmp_path: Path) -> None:
    strategy, folder = stratagem.OneDeviceStrategy("CPU:0"), tmp_path / "shards"
    model = build(strategy, Model)
    for most in (40_000, 30_000):
        strategy.export(model, folder, shard_bytes=most)
        shards = list(folder.glob("model-*"))
        assert len(shards) == len(list(folder.iterdir())) - 1
        for shard in shards:
            assert sum(value.nbytes for value in load_file(shard).values()) <= most
    (folder / "mine").touch()
    with pytest.raises(InvalidArgumentError, match="no folder of shards"):
        strategy.export(model, folder, shard_bytes=40_000)
    (folder / "mine").unlink()
    shards[0].unlink()
    with pytest.raises(stratagem.DataLossError, match="which is not there"):
        strategy.restore(folder)
    (folder / SHARD_LIST).write_text("{")
    with pytest.raises(stratagem.DataLossError, match="not a list of shards"):
        strategy.restore(folder)


def test_what_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    strategy = stratagem.OneDeviceStrategy("CPU:0")
    model = build(strategy, Model)
    refused: list[dict[str, Any]] = [{"shard_bytes": 0}, {"shard_bytes": 9, "stored_rows": True}]
    for options in refused:
        with pytest.raises(InvalidArgumentError, match="shard_bytes"):
            strategy.export(model, tmp_path / "model", **options)
    with pytest.raises(InvalidArgumentError, match="memory"):
        strategy.export(model, "memory://model", shard_bytes=9)
    with pytest.raises(stratagem.NotFoundError):
        strategy.export(model, tmp_path / "none" / "model")


def test_a_model_with_its_tables_as_plain_embeddings_is_exported_by_torch(
    cluster: Cluster, tmp_path: Path
) -> None:
    with cluster.strategy() as strategy:
        model = build(strategy, Model)
        trained(strategy, model, *BATCH)
        strategy.export(model, tmp_path / "model.safetensors")
        expected = answers(model, *BATCH)
    plain = Model().eval()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    exported = torch.export.export(plain, BATCH)
    torch.export.save(exported, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.equal(loaded(*BATCH), expected)


def test_a_model_with_its_tables_as_plain_embeddings_becomes_one_of_onnx(
    cluster: Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript", reason="torch.onnx needs onnxscript, which is not installed")
    with cluster.strategy() as strategy:
        model = build(strategy, Model)
        trained(strategy, model, *BATCH)
        strategy.export(model, tmp_path / "model.safetensors")
        expected = answers(model, *BATCH)
    plain = Model().eval()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    program = torch.onnx.export(plain, BATCH, dynamo=True)
    assert program is not None
    (found,) = program.call_reference(*BATCH)
    torch.testing.assert_close(torch.as_tensor(found), expected)
