"""The demo, shortened."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from examples import movielens
from stratagem_deploy import LocalCluster


def test_it_learns_and_leaves_a_model_that_needs_no_stratagem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalCluster(ps=2, workers=2) as cluster:
        errors = cluster.run(movielens.train, tmp_path, movielens.Options(epochs=3))

    assert errors[0] == errors[1] < 1.05
    plain = movielens.Recommender()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    held_out = movielens.load_ratings()[: movielens.HELD_OUT]
    assert movielens.rmse(plain, held_out) == errors[0]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    for name, *_ in plain.named_parameters():
        assert name in printed
    assert "steps/s" in printed
