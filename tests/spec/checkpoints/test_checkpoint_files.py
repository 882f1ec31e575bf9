"""Checkpoints on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import stratagem
from stratagem import (
    Variable,
)
from tests.spec.checkpoints.checkpoints import STRATEGIES, copies_of, created

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.mark.parametrize("target", STRATEGIES)
@pytest.mark.spec("VCK-7")
def test_a_file_without_a_strategy_is_as_good(target: str, tmp_path: Path) -> None:
    """And a plain variable takes the value out of the file."""
    plain, strategy = Variable(3.0, name="v"), STRATEGIES[target]()
    save_file({plain.name: plain.read_value().detach()}, tmp_path / "plain")
    variable = created(strategy)
    strategy.restore(tmp_path / "plain")
    assert set(copies_of(variable)) == {3.0}
    variable.assign(4.0)
    strategy.save(tmp_path / "ours.safetensors")
    plain.assign(load_file(tmp_path / "ours.safetensors")["v"])
    assert plain.numpy() == 4.0


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    strategy = stratagem.OneDeviceStrategy("CPU:3")
    with pytest.raises(stratagem.NotFoundError, match="there is no checkpoint"):
        strategy.restore(tmp_path / "none")
    with pytest.raises(stratagem.NotFoundError, match="there is no checkpoint"):
        strategy.restore(tmp_path)
    with pytest.raises(stratagem.NotFoundError, match="there is no folder"):
        strategy.save(tmp_path / "none" / "model.safetensors")
    with pytest.raises(stratagem.InvalidArgumentError, match="one file of tensors"):
        strategy.save(tmp_path / "model.safetensors", keep=2)
    (tmp_path / "damaged").write_bytes(b"nothing of the kind")
    with pytest.raises(stratagem.DataLossError, match="damaged"):
        strategy.restore(tmp_path / "damaged")


@pytest.mark.parametrize("target", STRATEGIES)
@pytest.mark.spec("VCK-9")
def test_a_file_has_the_values_as_of_the_call(target: str, tmp_path: Path) -> None:
    """Saves that are not waited for; the last one stays."""
    strategy = STRATEGIES[target]()
    variable = created(strategy, 0.0)
    pending = []
    for number in range(5):
        variable.assign(float(number))
        pending.append(strategy.save(tmp_path / "model.safetensors", wait=False))
    variable.assign(9.0)
    for written in pending:
        assert written.result(timeout=60) is None
    assert load_file(tmp_path / "model.safetensors")["v"] == 4.0
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.spec("VCK-9")
def test_a_save_that_is_not_waited_for_tells_its_error(tmp_path: Path) -> None:
    strategy = STRATEGIES["one"]()
    kept = created(strategy, torch.zeros(1, dtype=torch.complex128))
    written = strategy.save(tmp_path / "model.safetensors", wait=False)
    with pytest.raises(stratagem.InvalidArgumentError, match=r"torch\.complex128"):
        written.result(timeout=60)
    with pytest.raises(stratagem.InvalidArgumentError, match=r"torch\.complex128"):
        strategy.save(tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
    assert kept.name in strategy.state_dict()
