"""Checkpoints of a cluster whose servers and programs have a key."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import stratagem
from stratagem import FailedPreconditionError, ParameterServerStrategy, PermissionDeniedError
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_storage.checkpoint.folder import open_checkpoint
from stratagem_storage.checkpoint.policy import CheckpointPolicy
from tests.client.clusters import running

KEYS = ("the key of this cluster", "the key of another one")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Files with the two keys."""
    files = [tmp_path / f"key-{number}" for number in range(len(KEYS))]
    for file, key in zip(files, KEYS, strict=True):
        file.write_text(key)
    return [str(file) for file in files]


def saved(root: Path) -> float:
    """Saves 3, restores it, and returns what there is then."""
    with running(2) as cluster, cluster.strategy() as strategy:
        variable = made(strategy)
        variable.assign(3.0)
        strategy.save(root)
        variable.assign(4.0)
        strategy.restore(root)
        return float(variable.numpy())


def made(strategy: ParameterServerStrategy) -> stratagem.Variable:
    with strategy.scope():
        return stratagem.Variable(0.0, name="v")


def test_a_cluster_restores_what_it_has_signed_and_nothing_else(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saved(tmp_path / "unsigned") == 3.0
    monkeypatch.setenv(CHECKPOINT_KEY_FILE.variable, files[1])
    assert saved(tmp_path / "other") == 3.0
    monkeypatch.setenv(CHECKPOINT_KEY_FILE.variable, files[0])
    assert saved(tmp_path / "signed") == 3.0
    open_checkpoint(tmp_path / "signed", CheckpointPolicy(key=KEYS[0])).verify()
    with running(2) as cluster, cluster.strategy() as strategy:
        variable = made(strategy)
        variable.assign(5.0)
        for name in ("unsigned", "other"):
            with pytest.raises(PermissionDeniedError, match="only what its key of checkpoints"):
                strategy.restore(tmp_path / name)
        assert variable.numpy() == 5.0
        strategy.restore(tmp_path / "signed")
        assert variable.numpy() == 3.0
    monkeypatch.delenv(CHECKPOINT_KEY_FILE.variable)
    with running(2) as cluster, cluster.strategy() as strategy:
        variable = made(strategy)
        strategy.restore(tmp_path / "signed")
        assert variable.numpy() == 3.0


def test_a_strategy_of_one_machine_with_a_key_refuses_files_and_other_folders(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINT_KEY_FILE.variable, files[0])
    saved(tmp_path / "signed")
    save_file({"v": torch.ones(())}, tmp_path / "file.safetensors")
    strategy = stratagem.OneDeviceStrategy("CPU:0")
    strategy.restore(tmp_path / "signed")
    with pytest.raises(PermissionDeniedError, match="is a file without a signature"):
        strategy.restore(tmp_path / "file.safetensors")
    monkeypatch.setenv(CHECKPOINT_KEY_FILE.variable, files[1])
    with pytest.raises(PermissionDeniedError, match=r"was altered .* or is of another cluster"):
        strategy.restore(tmp_path / "signed")


@pytest.mark.parametrize("has_key", [True, False])
def test_servers_and_programs_have_a_key_together(
    has_key: bool, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_key:
        monkeypatch.setenv(CHECKPOINT_KEY_FILE.variable, files[0])
    with running(2) as cluster, cluster.strategy() as strategy:
        made(strategy)
        if has_key:
            monkeypatch.setenv(CHECKPOINT_KEY_FILE.variable, files[0])
        else:
            monkeypatch.delenv(CHECKPOINT_KEY_FILE.variable)
        with pytest.raises(FailedPreconditionError, match=CHECKPOINT_KEY_FILE.variable):
            strategy.save(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


def test_an_incremental_checkpoint_refers_to_signed_ones_alone(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    monkeypatch.setenv(CHECKPOINT_KEY_FILE.variable, files[0])
    for count in range(3):
        with running(2) as cluster, cluster.strategy() as strategy:
            variable = made(strategy)
            variable.assign(7.0)
            strategy.save(tmp_path, incremental=True, keep=9)
            latest = open_checkpoint(tmp_path, CheckpointPolicy(key=KEYS[0]))
            assert (latest.base is None) == (not count)
            variable.assign(8.0)
            strategy.restore(tmp_path)
            assert variable.numpy() == 7.0
