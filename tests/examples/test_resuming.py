"""The program to copy, shortened; tests/cluster/test_resuming_program.py kills it."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from examples import resuming
from stratagem_deploy import LocalCluster


def test_it_uses_each_rating_once_an_epoch_and_leaves_a_plain_model(tmp_path: Path) -> None:
    options = resuming.Options(epochs=2, ratings=4_100, save_every=2)
    for _ in range(2):  # the second time all is over
        with LocalCluster(ps=2, workers=2) as cluster:
            first, second = cluster.run(resuming.train, tmp_path, options)
        assert first == second
        assert (first.epochs, first.fewest, first.most) == (2, 2, 2)
        plain = resuming.Recommender()
        plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
        held_out = resuming.load_ratings()[: resuming.HELD_OUT]
        assert abs(resuming.rmse(plain, held_out) - first.error) < 1e-6
