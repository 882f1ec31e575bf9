"""The `stratagem checkpoint` commands with checkpoints in a store."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import are_equal, load_from, save_at, sharded
from tests.deploy.checkpoints.commands import answer, call

TABLE = torch.arange(10.0).reshape(5, 2)


@pytest.fixture
def url(bucket: str) -> str:
    """A place with a checkpoint of two servers."""
    url = f"{bucket}/{secrets.token_hex(4)}"
    save_at(url, sharded("table", TABLE, 2), keep=1)
    return url


def test_checkpoints_in_a_store_are_looked_at(url: str) -> None:
    listed = answer("inspect", url)
    assert listed["path"].startswith(f"{url}/checkpoint-1-")
    assert "3 tensors are intact" in call("verify", url)
    call("diff", url, listed["path"])


def test_a_checkpoint_goes_from_a_store_to_a_folder_and_back(url: str, tmp_path: Path) -> None:
    answer("reshard", url, tmp_path / "run", "--servers", 3)
    written = answer("reshard", tmp_path / "run", f"{url}-back", "--servers", 1, "--keep", 2)
    assert written["path"].startswith(f"{url}-back/checkpoint-1-")
    call("diff", url, f"{url}-back")
    assert are_equal(load_from(f"{url}-back"), load_from(url))


def test_files_are_exported_to_a_store_and_imported_from_it(url: str, tmp_path: Path) -> None:
    assert answer("export", url, f"{url}/model.safetensors")["path"] == f"{url}/model.safetensors"
    call("export", url, f"{url}/model.safetensors", code=2)
    call("export", url, tmp_path / "model.safetensors")
    assert are_equal(
        load_from(f"{url}/model.safetensors"), load_file(tmp_path / "model.safetensors")
    )
    answer("import", f"{url}/model.safetensors", f"{url}-new", "--servers", 2)
    assert torch.equal(load_from(f"{url}-new")["table"], TABLE)
    save_file({"table": TABLE + 1}, tmp_path / "other.safetensors")
    answer("import", tmp_path / "other.safetensors", f"{url}-new", "--servers", 2)
    call("diff", url, f"{url}-new", code=1)


def test_a_checkpoint_in_a_store_is_signed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    monkeypatch.setenv("STRATAGEM_CHECKPOINT_KEY_FILE", str(key))
    assert "is not signed" in call("verify", url, code=1)
    signed = answer("sign", url)["path"]
    assert signed.startswith(f"{url}/checkpoint-2-")
    call("verify", url)


def test_what_no_other_process_sees_and_what_torch_cannot_read_is_refused(url: str) -> None:
    assert "memory of one process" in call("inspect", "memory://run", code=2)
    refused = call("export", "--format", "dcp", url, f"{url}-dcp", code=2)
    assert "only on file systems" in refused
    assert "there is no checkpoint 's3://none/run'" in call("verify", "s3://none/run", code=2)
