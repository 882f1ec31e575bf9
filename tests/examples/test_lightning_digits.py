"""Lightning's `Trainer`, by itself and on servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster

pytest.importorskip("lightning", reason="Lightning is not installed")

NOISE = 0.03
"""Of the accuracy on 360 images. That of four plain runs, with other seeds, is within 0.02."""


def in_two_halves(resolver: ClusterResolver, folder: Path) -> tuple[float, float]:
    """One worker's program, which ends after half of the epochs and is started again."""
    from examples.lightning_digits import train_on_servers

    half = train_on_servers(resolver, folder, epochs=6)
    return half, train_on_servers(resolver, folder, epochs=12, resume=str(folder / "last.ckpt"))


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")  # of the framework, about devices
def test_two_workers_come_as_far_as_lightning_alone_and_resume(tmp_path: Path) -> None:
    from examples import lightning_digits as example

    plain = example.train_plainly(tmp_path / "plain")
    assert plain > 0.93
    folder = tmp_path / "servers"
    with LocalCluster(ps=2, workers=2, processes=True) as cluster:
        (half, first), (other_half, second) = cluster.run(in_two_halves, folder)
    assert half == other_half
    assert first == second
    assert {"best.ckpt", "last.ckpt"} <= {each.name for each in folder.glob("*.ckpt")}
    assert first > plain - NOISE
