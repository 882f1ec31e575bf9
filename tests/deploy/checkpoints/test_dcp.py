"""Checkpoints for, and of, `torch.distributed.checkpoint`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save as save_by_torch

from stratagem import DistributedOptimizer
from tests.checkpoints import (
    are_equal,
    load_from,
    model,
    save,
    sharded,
    slot,
    stored_table,
)
from tests.client.clusters import running
from tests.deploy.checkpoints.commands import answer, call

EXPORT = ("export", "--format", "dcp")
IMPORT = ("import", "--format", "dcp")


def torch_saves(path: Path, state: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        save_by_torch(state, checkpoint_id=path)


def torch_loads(path: Path, state: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        load(state, checkpoint_id=path)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def test_what_servers_saved_comes_back_from_torchs_form(tmp_path: Path) -> None:
    """Split or not, of every dtype, with and without elements."""
    held = sharded("table", torch.arange(26.0).reshape(13, 2), 3)
    for number, dtype in enumerate([torch.bfloat16, torch.int64, torch.bool]):
        value = torch.ones(number, dtype=dtype)
        held[number].append((model(f"v{number}", value), value))
    scalar = torch.tensor(2.0)
    held[0] += [
        (model("scalar", scalar), scalar),
        (slot("scalar", "Adam/step", scalar), scalar),
    ]
    save(tmp_path / "run", held, keep=1)
    assert "has 8 tensors" in call(*EXPORT, tmp_path / "run", tmp_path / "dcp")
    report = answer(*IMPORT, tmp_path / "dcp", tmp_path / "again", "--servers", 2)
    assert report["left_out"] == []
    assert are_equal(load_from(tmp_path / "again"), load_from(tmp_path / "run"))
    facts = {one["name"]: one for one in answer("inspect", tmp_path / "again")["variables"]}
    assert facts["scalar/Adam/step"]["kind"] == "slot"
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_plain_program_loads_the_model_of_a_cluster(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            hosted = network()
        strategy.save(tmp_path / "run")
        expected = hosted.state_dict()
    call(*EXPORT, tmp_path / "run", tmp_path / "dcp")
    plain = network()
    state = plain.state_dict()
    torch_loads(tmp_path / "dcp", state)
    plain.load_state_dict(state)
    assert are_equal(plain.state_dict(), expected)


def test_a_cluster_restores_what_a_plain_program_saved(tmp_path: Path) -> None:
    """Of a nest with more in it, what is under one key."""
    plain = network()
    optimizer = torch.optim.Adam(plain.parameters())
    state = {"model": plain.state_dict(), "optim": optimizer.state_dict(), "epoch": 3}
    torch_saves(tmp_path / "dcp", state)
    source, target = tmp_path / "dcp", tmp_path / "run"
    left_out = answer(*IMPORT, source, target, "--prefix", "model")["left_out"]
    assert "epoch" in left_out
    assert any(name.startswith("optim.param_groups") for name in left_out)
    assert not any(name.startswith("model") for name in left_out)
    with running(2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            hosted = network()
        strategy.restore(target).assert_consumed()
        assert are_equal(hosted.state_dict(), plain.state_dict())


def test_the_state_of_an_optimizer_comes_with_its_model(tmp_path: Path) -> None:
    plain = network()
    adam = torch.optim.Adam(plain.parameters(), amsgrad=True)
    for parameter in plain.parameters():
        parameter.grad = torch.ones_like(parameter)
    adam.step()
    state = get_optimizer_state_dict(plain, adam)
    torch_saves(tmp_path / "dcp", {"model": plain.state_dict(), "optim": state})
    chosen = "--prefix", "model", "--optimizer", "optim=Adam"
    answer(*IMPORT, tmp_path / "dcp", tmp_path / "run", *chosen, "--servers", 2)
    with running(2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            hosted = network()
        mine = torch.optim.Adam(hosted.parameters(), amsgrad=True)
        optimizer = DistributedOptimizer(mine)
        strategy.restore(tmp_path / "run").assert_consumed()
        restored = optimizer.state_dict()["state"]
    for number, slots in adam.state_dict()["state"].items():
        assert are_equal(restored[number], slots)


def test_state_without_names_of_parameters_is_refused(tmp_path: Path) -> None:
    plain = network()
    adam = torch.optim.Adam(plain.parameters())
    plain(torch.randn(2, 3)).sum().backward()
    adam.step()
    state = {"model": plain.state_dict(), "optim": adam.state_dict()}
    torch_saves(tmp_path / "dcp", state)
    source, target = tmp_path / "dcp", tmp_path / "run"
    chosen = "--prefix", "model", "--optimizer", "optim=Adam"
    said = call(*IMPORT, source, target, *chosen, code=2)
    assert "get_optimizer_state_dict" in said
    assert "no optimizer is called" in call(
        *IMPORT, source, target, "--optimizer", "optim=Best", code=2
    )
    assert "KEY=NAME" in call(*IMPORT, source, target, "--optimizer", "Adam", code=2)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    torch_saves(tmp_path / "dcp", {"w": torch.ones(1), "epoch": 3})
    assert "epoch is left out" in call(*IMPORT, tmp_path / "dcp", tmp_path / "run")
    said = call(*IMPORT, tmp_path / "dcp", tmp_path / "run", "--prefix", "no", code=2)
    assert "begins with 'no.'" in said
    call("import", tmp_path / "dcp", tmp_path / "run", "--prefix", "no", code=2)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_damage_to_torchs_files_is_said(name: str, tmp_path: Path) -> None:
    torch_saves(tmp_path / "dcp", {"w": torch.ones(5)})
    file = tmp_path / "dcp" / name
    file.write_bytes(b"")
    assert "damaged" in call(*IMPORT, tmp_path / "dcp", tmp_path / "run", code=1)
    file.unlink()
    call(*IMPORT, tmp_path / "dcp", tmp_path / "run", code=2 if name[0] == "." else 1)
    assert not (tmp_path / "run").exists()


def test_tables_are_exported_with_all_their_rows(tmp_path: Path) -> None:
    whole = torch.arange(26.0).reshape(13, 2)
    save(tmp_path / "run", stored_table("table", whole, [1, 5, 12], 3), keep=1)
    call(*EXPORT, tmp_path / "run", tmp_path / "dcp")
    found = {"table": torch.empty(13, 2), "table/Adagrad/sum": torch.empty(13, 2)}
    torch_loads(tmp_path / "dcp", found)
    expected = torch.full((13, 2), 0.5)
    expected[[1, 5, 12]] = whole[[1, 5, 12]]
    assert torch.equal(found["table"], expected)
    assert float(found["table/Adagrad/sum"][0, 0]) == -1.0


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", sharded("table", torch.ones(4, 2), 2), keep=1)
    call(*EXPORT, folder, tmp_path / "dcp")
    call(*EXPORT, folder, tmp_path / "dcp", code=2)  # it exists
    part = folder / "part-1.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    assert "part-1" in call(*EXPORT, folder, tmp_path / "other", code=1)
    assert not (tmp_path / "other").exists()


def test_large_checkpoints_are_imported_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"v{number}": torch.full((4,), float(number)) for number in range(7)}
    torch_saves(tmp_path / "dcp", state)
    monkeypatch.setattr("stratagem_deploy.checkpoints.dcp._BATCH_BYTES", 33)
    call(*IMPORT, tmp_path / "dcp", tmp_path / "run")
    assert are_equal(load_from(tmp_path / "run"), state)


def test_a_dtype_that_checkpoints_lack_is_refused(tmp_path: Path) -> None:
    torch_saves(tmp_path / "dcp", {"w": torch.ones(1, dtype=torch.complex128)})
    said = call(*IMPORT, tmp_path / "dcp", tmp_path / "run", code=2)
    assert "complex128" in said
