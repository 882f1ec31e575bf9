"""The `stratagem checkpoint` commands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import are_equal, load_from, model, save, sharded
from tests.deploy.checkpoints.commands import answer, call
from tests.full import by_values
from tests.storage.stores.test_incremental_checkpoints import save as save_rows

SERVERS = (1, 2, 3, 5, 8)


def saved(root: Path, servers: int = 2, rows: int = 13, bias: float = 0.5) -> Path:
    """A checkpoint of that many servers, with a table on all and a bias on the last."""
    table = torch.arange(rows * 2.0).reshape(rows, 2)
    held = sharded("table", table, servers)
    value = torch.full((3,), bias)
    held[-1].append((model("bias", value), value))
    return save(root, held, keep=1)


@by_values("before,after", SERVERS, [*SERVERS[1:], SERVERS[0]])
@pytest.mark.spec("SHV-30")
def test_a_checkpoint_is_resharded(before: int, after: int, tmp_path: Path) -> None:
    """Also to more servers than there are rows."""
    for rows in (4, 13):
        source, target = tmp_path / f"{rows} before", tmp_path / f"{rows} after"
        saved(source, before, rows)
        answer("reshard", source, target, "--servers", after)
        assert are_equal(load_from(source), load_from(target))
        facts = {one["name"]: one for one in answer("inspect", target)["variables"]}
        assert facts["table"]["shards"] == after
        assert facts["table/Adam/exp_avg"]["shards"] == after
        assert facts["table/Adam/step"]["shards"] == facts["bias"]["shards"] == 1
        assert len(answer("inspect", target)["files"]) == after


def test_a_checkpoint_becomes_a_file_and_a_file_a_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path / "run")
    file, again = tmp_path / "model.safetensors", tmp_path / "again"
    call("export", tmp_path / "run", file)
    assert are_equal(load_file(file), load_from(tmp_path / "run"))
    call("import", file, again, "--servers", 3)
    assert are_equal(load_file(file), load_from(again))
    call("verify", again)
    assert "table/Adam/step" in call("inspect", again)
    assert "exists; delete it, or give another" in call("export", again, file, code=2)


def test_a_file_that_cannot_be_exported_whole_is_not_left(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    (folder / "part-1.safetensors").unlink()
    assert "missing" in call("export", folder, tmp_path / "file", code=1)
    assert not (tmp_path / "file").exists()
    call("reshard", folder, tmp_path / "new", "--servers", 3, code=1)
    assert list((tmp_path / "new").iterdir()) == []


def test_verifying_finds_damage(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    assert answer("verify", tmp_path)["tensors"] == 4
    part = folder / "part-0.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    assert "damaged" in call("verify", tmp_path, code=1)
    call("verify", tmp_path / "none", code=2)


def test_differences_are_listed(tmp_path: Path) -> None:
    saved(tmp_path / "one", 2)
    saved(tmp_path / "two", 3)
    assert answer("diff", tmp_path / "one", tmp_path / "two") == {"differences": {}}
    saved(tmp_path / "two", 3, bias=0.75)
    file = tmp_path / "file"
    save_file({"bias": torch.ones(4), "new": torch.ones(1)}, file)
    found = answer("diff", tmp_path / "one", tmp_path / "two", code=1)
    assert found == {"differences": {"bias": "3 of 3 elements, by up to 0.25"}}
    shown = call("diff", tmp_path / "one", file, code=1)
    assert "bias: float32 [3] and float32 [4]" in shown
    assert "new: only in the second" in shown
    assert "table: only in the first" in shown


def test_a_checkpoint_is_signed_by_whoever_trusts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "run")
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_text("the key of this cluster")
    other.write_text("the key of another one")
    before = load_from(tmp_path / "run")
    signed = answer("sign", tmp_path / "run", "--checkpoint-key-file", key)["path"]
    assert (tmp_path / "run" / "checkpoint-1").is_dir()
    assert are_equal(load_from(tmp_path / "run"), before)
    monkeypatch.setenv("STRATAGEM_CHECKPOINT_KEY_FILE", str(key))
    call("verify", tmp_path / "run")
    assert "is not signed" in call("verify", tmp_path / "run" / "checkpoint-1", code=1)
    call("reshard", signed, tmp_path / "new", "--servers", 3)
    call("verify", tmp_path / "new")
    call("export", signed, tmp_path / "model.safetensors")
    call("import", tmp_path / "model.safetensors", tmp_path / "imported", "--servers", 2)
    call("verify", tmp_path / "imported")
    call("sign", tmp_path / "model.safetensors", code=2)
    monkeypatch.setenv("STRATAGEM_CHECKPOINT_KEY_FILE", str(other))
    assert "of another cluster" in call("verify", signed, code=1)
    call("export", signed, tmp_path / "again", code=1)


def test_a_damaged_checkpoint_is_not_signed(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    part = folder / "part-0.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    (tmp_path / "key").write_text("the key of this cluster")
    call("sign", folder, "--checkpoint-key-file", tmp_path / "key", code=1)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"checkpoint-1", "latest"}


def test_an_incremental_checkpoint_is_made_whole(tmp_path: Path) -> None:
    value = torch.arange(12.0).reshape(6, 2)
    save_rows(tmp_path / "run", value)
    save_rows(tmp_path / "run", value + 1, [0, 1, 2, 3, 4, 5])
    latest = tmp_path / "run" / "checkpoint-2"
    assert answer("inspect", tmp_path / "run")["bases"] == ["checkpoint-1"]
    call("verify", tmp_path / "run")
    (tmp_path / "key").write_text("the key of this cluster")
    refused = call("sign", latest, "--checkpoint-key-file", tmp_path / "key", code=2)
    assert "stratagem checkpoint reshard" in refused
    call("reshard", tmp_path / "run", tmp_path / "whole", "--servers", 2)
    assert answer("inspect", tmp_path / "whole")["bases"] == []
    call("diff", tmp_path / "run", tmp_path / "whole")
    call("sign", tmp_path / "whole", "--checkpoint-key-file", tmp_path / "key")
    assert torch.equal(load_from(tmp_path / "whole")["v"], value + 1)
