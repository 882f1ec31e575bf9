"""What is done to a cluster while a test waits ends the test if it fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import InvalidArgumentError
from tests.cluster.interventions import beside
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


def begin_and_hang(resolver: ClusterResolver, folder: Path) -> None:
    (folder / "begun").touch()
    time.sleep(1e6)


def test_an_act_that_fails_ends_a_run_that_would_go_on(tmp_path: Path) -> None:
    with LocalCluster(ps=0, workers=1, processes=True) as cluster:

        def kill() -> None:
            eventually((tmp_path / "begun").exists)
            cluster.kill("worker", 1)

        with pytest.raises(InvalidArgumentError, match="worker:1"), beside(kill):
            cluster.run(begin_and_hang, tmp_path)


def test_an_act_may_fail_after_what_runs_beside_it() -> None:
    with pytest.raises(AssertionError, match="did not happen"), beside(fail_late):
        pass


def fail_late() -> None:
    eventually(lambda: False, 0.2)
