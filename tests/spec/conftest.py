"""Strategies that tests of this folder share."""

from __future__ import annotations

import pytest

from stratagem import ParameterServerStrategy, Strategy, config
from tests.client.two_replicas import TwoReplicas


@pytest.fixture(params=["written by a user", "parameter servers"])
def strategy(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Strategy:
    """Two replicas, under one strategy and another."""
    if request.param == "written by a user":
        return TwoReplicas()
    monkeypatch.delenv("TF_CONFIG", raising=False)
    request.addfinalizer(lambda: config.set_logical_cpus(1))
    config.set_logical_cpus(2)
    return ParameterServerStrategy(num_replicas_per_worker=2)
