"""Threads of worker processes that wait for a kernel."""

from __future__ import annotations

import os

import pytest

from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster

pytestmark = pytest.mark.cluster


def wait_policy(_: ClusterResolver) -> str | None:
    return os.environ.get("OMP_WAIT_POLICY")


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_they_leave_their_core_to_others(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    with LocalCluster(ps=0, workers=1, processes=True) as cluster:
        assert cluster.run(wait_policy) == [given or "PASSIVE"]
