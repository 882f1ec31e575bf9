"""The `Trainer` of Transformers, by itself and on servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster

pytest.importorskip("accelerate", reason="Accelerate is not installed")
pytest.importorskip("transformers", reason="Transformers is not installed")

NOISE = 0.03
"""Of the accuracy on 400 sentences. That of four plain runs, with other seeds, is within 0.01."""


def in_two_halves(resolver: ClusterResolver, folder: Path) -> tuple[float, float]:
    """One worker's program, which ends after half of the epochs and is started again."""
    from examples.transformers_sentiment import train_on_servers

    half = train_on_servers(resolver, folder, epochs=2)
    return half, train_on_servers(resolver, folder, epochs=4, resume=True)


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")  # of the framework, about devices
def test_two_workers_come_as_far_as_the_trainer_alone_and_resume(tmp_path: Path) -> None:
    from examples import transformers_sentiment as example

    plain = example.train_plainly(tmp_path / "plain")
    assert plain > 0.95
    folder = tmp_path / "servers"
    with LocalCluster(ps=2, workers=2, processes=True) as cluster:
        (half, first), (other_half, second) = cluster.run(in_two_halves, folder)
    assert half == other_half
    assert first == second
    # Each worker takes 40 of an epoch's 80 steps, and the chief alone saves.
    saved = {each.name for each in folder.iterdir()}
    assert saved == {f"checkpoint-{steps}" for steps in (40, 80, 120, 160)}
    assert first > plain - NOISE
