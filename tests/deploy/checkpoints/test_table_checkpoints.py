"""The `stratagem checkpoint` commands, with tables of stored rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.nn import DynamicEmbedding, Embedding
from stratagem.optim import RowWiseAdagrad
from stratagem.partitioners import FixedShardsPartitioner
from stratagem_deploy.cli import app
from stratagem_proto.division import PartRows
from stratagem_storage.checkpoint.folder import open_checkpoint
from stratagem_storage.checkpoint.parts import Content
from tests.checkpoints import are_equal, load_from, save, sharded, stored, stored_table
from tests.client.clusters import running
from tests.full import a_few

ROWS = 13
USERS = [12, 0, 1, 7]


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["checkpoint", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def answer(*arguments: object, code: int = 0) -> Any:
    return json.loads(call(*arguments, "--json", code=code))


def tables(strategy: ParameterServerStrategy) -> nn.ModuleDict:
    with strategy.scope():
        return nn.ModuleDict(
            {
                "users": Embedding(ROWS, 2),
                "words": DynamicEmbedding(2, admit_after=2, max_bytes=100_000),
            }
        )


def save_restored(path: Path, root: Path) -> None:
    """Saves what a checkpoint becomes on two servers."""
    with running(2) as cluster, cluster.strategy() as strategy:
        module = tables(strategy)
        strategy.restore(path).assert_consumed()
        strategy.save(root)
        assert len(module) == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of two servers: one after three steps and one after four."""
    root = tmp_path_factory.mktemp("trained") / "run"
    with running(2) as cluster:
        divide = FixedShardsPartitioner(2)
        with cluster.strategy(variable_partitioner=divide) as strategy:
            module = tables(strategy)
            adagrad = torch.optim.Adagrad(module.parameters(), lr=0.5)
            optimizer = DistributedOptimizer(adagrad)

            def step(first: int) -> None:
                optimizer.zero_grad()
                keys = torch.arange(first, first + 5)
                sum(one(keys).square().sum() for one in module.values()).backward()
                optimizer.step()

            for first in (0, 2, 3, 3):
                strategy.run(step, args=(first,))
                strategy.save(root, keep=2)
    return root


@a_few("servers", [1, 3], "rows are dealt to any number by one rule")
def test_rows_go_to_other_servers(servers: int, trained: Path, tmp_path: Path) -> None:
    path = answer("reshard", trained, tmp_path / "new", "--servers", servers)["path"]
    call("verify", path)
    assert answer("diff", trained, path) == {"differences": {}}
    facts = {one["name"]: one for one in answer("inspect", path)["variables"]}
    assert facts["words.weight"]["shards"] == servers
    assert facts["users.weight/Adagrad/sum"]["shards"] == servers
    assert facts["users.weight"]["rows"] == 8
    back = answer("reshard", path, tmp_path / "back", "--servers", 2)["path"]
    assert answer("diff", trained, back) == {"differences": {}}
    save_restored(path, tmp_path / "restored")
    assert stored(tmp_path / "restored") == stored(trained)
    assert answer("diff", trained, tmp_path / "restored") == {"differences": {}}


def test_differences_of_tables_are_listed(trained: Path) -> None:
    found = answer("diff", trained.parent / "run/checkpoint-3", trained, code=1)
    differences = found["differences"]
    assert differences.keys() == {
        "users.weight",
        "users.weight/Adagrad/step",
        "users.weight/Adagrad/sum",
        "words.weight",
        "words.weight/Adagrad/step",
        "words.weight/Adagrad/sum",
    }
    assert differences["users.weight"].startswith("10 of 16 elements, by up to")
    assert differences["words.weight"] == "0 rows only in the first, 1 only in the second"


def test_stored_rows_are_compared_though_others_would_differ_anyway(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        with running() as cluster, cluster.strategy() as strategy:
            with strategy.scope():
                table = Embedding(100, 2)
            sgd = DistributedOptimizer(torch.optim.SGD(table.parameters(), 1.0))
            table(torch.tensor([1, 2])).sum().backward()
            sgd.step()
            strategy.save(tmp_path / name)
    found = answer("diff", tmp_path / "one", tmp_path / "two", code=1)["differences"]
    assert found["weight"].startswith("4 of 4 elements, by up to")
    assert found["weight"].endswith("; rows that were never written have other values")


def test_stored_rows_are_exported_with_their_keys(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.safetensors"
    assert "export --stored-rows" in call("export", trained, file, code=2)
    assert not file.exists()
    call("export", trained, file, "--stored-rows")
    written = load_file(file)
    expected = stored(trained)
    for name, rows in expected.items():
        keys = written[f"{name}[keys]"].tolist()
        assert dict(zip(keys, written[name].tolist(), strict=True)) == rows
    assert {key for key in written if not key.endswith("]")} - expected.keys() == {
        "users.weight/Adagrad/step",
        "words.weight/Adagrad/step",
    }
    dcp = "--format", "dcp", "--stored-rows"
    assert "--stored-rows is for" in call("export", trained, file, *dcp, code=2)


def test_exported_rows_come_back_by_import(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.safetensors"
    call("export", trained, file, "--stored-rows")
    path = answer("import", file, tmp_path / "again", "--servers", 3)["path"]
    differences = answer("diff", trained, path, code=1)["differences"]
    assert differences == {"words.weight": "rows were idle for other times"}
    save_restored(path, tmp_path / "restored")
    assert stored(tmp_path / "restored") == stored(trained)
    (limits,) = (
        entry.spec.table.dynamic
        for entry in open_checkpoint(tmp_path / "restored").index.tensors.values()
        if entry.name == "words.weight/part_1"
    )
    assert (limits.part, limits.parts, limits.max_bytes) == (1, 2, 50_000)


def test_rows_that_another_program_wrote_are_no_table(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.safetensors"
    call("export", trained, file, "--stored-rows")
    save_file(load_file(file), file)
    said = call("import", file, tmp_path / "again", code=2)
    assert "no description of the table" in said
    assert "import the file as `stratagem checkpoint export --stored-rows` wrote it" in said


def test_a_table_of_another_size_than_its_file_says_is_damage(
    trained: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.safetensors"
    call("export", trained, file, "--stored-rows")
    data = file.read_bytes()
    count = rb"\"count\": 8"
    assert data.count(count) == 2
    file.write_bytes(data.replace(count, rb"\"count\": 9", 1))
    assert "its metadata and its header differ" in call("inspect", file, code=1)


def test_a_table_becomes_a_file_with_all_its_rows_and_back(tmp_path: Path) -> None:
    values = torch.arange(ROWS * 2.0).reshape(ROWS, 2)
    save(tmp_path / "run", stored_table("users", values, USERS, 2), keep=1)
    file, again = tmp_path / "model.safetensors", tmp_path / "again"
    call("export", tmp_path / "run", file)
    whole = load_file(file)
    assert are_equal(whole, load_from(tmp_path / "run"))
    is_user = torch.isin(torch.arange(ROWS), torch.tensor(USERS)).unsqueeze(1)
    assert torch.equal(whole["users"], values.where(is_user, 0.5))
    call("import", file, again, "--servers", 3)
    assert answer("diff", tmp_path / "run", again) == {"differences": {}}


@pytest.mark.parametrize("servers", [1, 3])
def test_parts_that_take_rows_in_turn_do_so_on_other_servers(servers: int, tmp_path: Path) -> None:
    values = torch.arange(ROWS * 2.0).reshape(ROWS, 2)
    held = [
        [*some, *others]
        for some, others in zip(
            stored_table("users", values, USERS, 2, is_interleaved=True),
            sharded("dense", values, 2, is_interleaved=True),
            strict=True,
        )
    ]
    save(tmp_path / "run", held, keep=1)
    new = answer("reshard", tmp_path / "run", tmp_path / "new", "--servers", servers)["path"]
    call("verify", new)
    assert answer("diff", tmp_path / "run", new) == {"differences": {}}
    assert stored(tmp_path / "new") == stored(tmp_path / "run")
    specs = {name: one.spec for name, one in open_checkpoint(new).index.tensors.items()}
    for number in range(servers if servers > 1 else 0):
        expected = PartRows.of_shard(ROWS, number, servers, True)
        for name in ("users", "dense"):
            assert PartRows.from_spec(specs[f"{name}/part_{number}"]) == expected
    back = answer("reshard", new, tmp_path / "back", "--servers", 2)["path"]
    assert answer("diff", tmp_path / "run", back) == {"differences": {}}


def test_a_table_in_one_piece_stays_so(tmp_path: Path) -> None:
    values = torch.arange(ROWS * 2.0).reshape(ROWS, 2)
    ((table, *others),) = stored_table("users/part_0", values, USERS, 1)
    for content, _ in (table, *others):
        assert isinstance(content, Content)
        content.spec.ClearField("partition")
    save(tmp_path / "run", [[table, *others]], keep=1)
    call("reshard", tmp_path / "run", tmp_path / "new", "--servers", 3)
    facts = answer("inspect", tmp_path / "new")["variables"]
    assert [one["shards"] for one in facts] == [1, 1]
    assert stored(tmp_path / "new") == stored(tmp_path / "run")


def test_state_by_rows_goes_to_other_servers_with_its_rows(tmp_path: Path) -> None:
    def trained(servers: int, path: Path | None) -> list[torch.Tensor]:
        torch.manual_seed(5)
        divide = FixedShardsPartitioner(servers)
        with (
            running(servers) as cluster,
            cluster.strategy(variable_partitioner=divide) as strategy,
        ):
            with strategy.scope():
                model = nn.ModuleDict({"users": Embedding(ROWS, 2), "dense": nn.Linear(2, ROWS)})
            both = [*model.parameters()]
            optimizer = DistributedOptimizer(RowWiseAdagrad(both, lr=0.5))

            def step(*rows: int) -> None:
                optimizer.zero_grad()
                model["dense"](model["users"](torch.tensor(rows))).square().sum().backward()
                optimizer.step()

            if path is None:
                strategy.run(step, args=USERS)
                strategy.save(tmp_path / "one")
            else:
                strategy.restore(path).assert_consumed()
            strategy.run(step, args=(0, 9))
            return [parameter.detach().clone() for parameter in both]

    expected = trained(2, None)
    path = answer("reshard", tmp_path / "one", tmp_path / "new", "--servers", 3)["path"]
    call("verify", path)
    assert answer("diff", tmp_path / "one", path) == {"differences": {}}
    facts = {one["name"]: one for one in answer("inspect", path)["variables"]}
    state = [facts[f"{name}.weight/RowWiseAdagrad/sum"] for name in ("users", "dense")]
    assert [one["shards"] for one in state] == [3, 3]
    assert [one["shape"] for one in state] == [[ROWS], [ROWS]]
    for found in (trained(3, Path(path)), trained(1, tmp_path / "one")):
        assert all(map(torch.equal, found, expected))
