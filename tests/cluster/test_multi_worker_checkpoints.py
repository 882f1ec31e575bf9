"""Checkpoints of workers without servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import stratagem
from stratagem import MultiWorkerMirroredStrategy
from tests.cluster.two_workers import on_two_workers, worker

pytestmark = pytest.mark.cluster


def test_the_chief_writes_and_all_restore(tmp_path: Path) -> None:
    """Also what they make after restoring."""

    def save(strategy: MultiWorkerMirroredStrategy) -> Any:
        with strategy.scope():
            module = nn.BatchNorm1d(2)
            seen = stratagem.Variable(3.0, name="seen")
        strategy.save(tmp_path / f"model{worker(strategy)}")
        seen.assign(9.0)
        return module.weight.tolist()

    def restore(strategy: MultiWorkerMirroredStrategy) -> Any:
        with strategy.scope():
            seen = stratagem.Variable(0.0, name="seen")
        restored = strategy.restore(tmp_path / "model0")
        with strategy.scope():
            module = nn.BatchNorm1d(2)
            nn.init.constant_(module.weight, 7.0)
        restored.assert_consumed()
        return [copy.numpy().tolist() for copy in seen.values], module.weight.tolist()

    assert on_two_workers(save) == [[1.0, 1.0]] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["model0"]
    assert torch.equal(load_file(tmp_path / "model0")["weight"], torch.ones(2))
    first, second = on_two_workers(restore)
    assert first == second == ([3.0] * len(first[0]), [1.0, 1.0])
