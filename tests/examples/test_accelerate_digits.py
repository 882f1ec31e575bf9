"""A loop of Accelerate, by itself and on servers."""

from __future__ import annotations

import pytest

from stratagem_deploy import LocalCluster

pytest.importorskip("accelerate", reason="Accelerate is not installed")

NOISE = 0.03
"""Of the accuracy on 360 images. That of four plain runs, with other seeds, is within 0.02."""


@pytest.mark.cluster
def test_two_workers_come_as_far_as_accelerate_alone() -> None:
    from examples import accelerate_digits

    plain = accelerate_digits.train_plainly()
    assert plain > 0.93
    with LocalCluster(ps=2, workers=2, processes=True) as cluster:
        first, second = cluster.run(accelerate_digits.train_on_servers)
    assert first == second
    assert first > plain - NOISE
