"""`stratagem follow` and `stratagem export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from stratagem import Reader
from stratagem_deploy.checkpoints import writing
from stratagem_deploy.cli import app
from tests.client.clusters import running
from tests.conftest import TOKEN
from tests.reader.followed import Training, assert_equal_to


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    return {"STRATAGEM_TOKEN_FILE": str(tmp_path / "token")}


def test_versions_become_files(tmp_path: Path, environment: dict[str, str]) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        for _ in range(2):
            version = strategy.publish()
            arguments = ["follow", *cluster.servers, "--to", str(tmp_path / "versions")]
            done = CliRunner().invoke(app, [*arguments, "--versions=1", "--json"], env=environment)
            assert done.exit_code == 0, done.output
            told = json.loads(done.output)
            assert (told["version"], told["place"]) == (version, str(tmp_path / "versions"))
            strategy.save(tmp_path / "now", keep=1)
            with Reader(tmp_path / "versions") as reader:
                assert reader.version == version
                assert_equal_to(reader, tmp_path / "now")
            training.train(steps=1)
        version = strategy.publish()
        file = str(tmp_path / "model.safetensors")
        arguments = ["export", *cluster.servers, "--to", file, "--stored-rows"]
        done = CliRunner().invoke(app, arguments, env=environment)
        assert done.exit_code == 0, done.output
        assert f"of version {version}" in done.output
        tensors, model = load_file(file), training.model
        strategy.refresh()
        assert torch.equal(tensors["first.weight"], model.first.weight)
        statistics = model.norm.state_dict()
        assert torch.equal(tensors["norm.running_var"], statistics["running_var"])
        rows = model.dynamic(tensors["dynamic.weight[keys]"])
        assert torch.equal(tensors["dynamic.weight"].float(), rows)
        assert not [name for name in tensors if "/" in name]
        done = CliRunner().invoke(app, arguments, env=environment)
        assert done.exit_code == 2 and "exists; give another place" in done.output
        _require_same_in_parquet(tmp_path, [*cluster.servers], environment, tensors)
        done = CliRunner().invoke(
            app, ["export", *cluster.servers, "--to", str(tmp_path / "all")], env=environment
        )
        assert done.exit_code == 2 and "'dynamic.weight' has no fixed number" in done.output


def _require_same_in_parquet(
    tmp_path: Path,
    servers: list[str],
    environment: dict[str, str],
    tensors: dict[str, torch.Tensor],
) -> None:
    """`--parquet` writes the rows of tables that a file has, and everything else."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the package pyarrow")
    arguments = ["export", *servers, "--to", str(tmp_path / "tables"), "--parquet"]
    with pytest.MonkeyPatch.context() as patch:
        # A file for each 20 rows of 16 bytes.
        patch.setattr(writing, "_PARQUET_BYTES", 320)
        done = CliRunner().invoke(app, arguments, env=environment)
    assert done.exit_code == 0, done.output
    values = load_file(tmp_path / "tables" / "values.safetensors")
    tables = {name.removesuffix("[keys]") for name in tensors if name.endswith("[keys]")}
    assert len(tables) == 3
    for name, value in tensors.items():
        if name in tables:
            files = sorted((tmp_path / "tables").glob(f"{name}-*.parquet"))
            found = [parquet.read_table(file) for file in files]
            assert len(files) > 1 and max(map(len, found)) <= 40
            keys = [key for each in found for key in each["key"].to_pylist()]
            rows = torch.tensor([row for each in found for row in each["row"].to_pylist()])
            assert keys == tensors[f"{name}[keys]"].tolist()
            assert torch.equal(rows, value.float())
            about = found[0].schema.metadata
            assert about[b"stratagem.dtype"].decode() == str(value.dtype).removeprefix("torch.")
        elif not name.endswith("[keys]"):
            assert torch.equal(values.pop(name), value)
    assert not values
    done = CliRunner().invoke(app, arguments, env=environment)
    assert done.exit_code == 2 and "exists; give another place" in done.output


def test_what_cannot_be_followed_is_told(tmp_path: Path, environment: dict[str, str]) -> None:
    file = str(tmp_path / "file")
    done = CliRunner().invoke(app, ["export", "a:1", "folder", "--to", file], env=environment)
    assert done.exit_code == 2 and "are several sources" in done.output
    nothing = ["export", str(tmp_path / "nothing"), "--to", file, "--timeout=0.2"]
    done = CliRunner().invoke(app, nothing, env=environment)
    assert done.exit_code == 2 and "had no version in 0.2 s" in done.output
