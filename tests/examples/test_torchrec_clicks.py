"""TorchRec's DLRM, by itself and on servers."""

from __future__ import annotations

import pytest

from stratagem_deploy import LocalCluster

pytest.importorskip("torchrec", reason="TorchRec is not installed")

NOISE = 0.02
"""Of the AUC on 20,000 clicks. Those of four plain runs are from 0.762 to 0.773."""


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")  # of the framework, about what it will no longer have
def test_two_workers_come_as_far_as_torchrec_alone() -> None:
    from examples import torchrec_clicks

    plain = torchrec_clicks.train_plainly()
    assert plain > 0.75
    with LocalCluster(ps=2, workers=2, processes=True) as cluster:
        first, second = cluster.run(torchrec_clicks.train_on_servers)
    assert first == second
    assert first > plain - NOISE
