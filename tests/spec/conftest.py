"""Strategies and coordinators that tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratagem import ParameterServerStrategy, Strategy, config
from stratagem.coordinator import ClusterCoordinator
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.client.two_replicas import TwoReplicas


@pytest.fixture(params=["written by a user", "parameter servers"])
def strategy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Strategy:
    """Two replicas, under one strategy and another."""
    if request.param == "written by a user":
        return TwoReplicas()
    monkeypatch.delenv("TF_CONFIG", raising=False)
    request.addfinalizer(lambda: config.set_logical_cpus(1))
    config.set_logical_cpus(2)
    return ParameterServerStrategy(num_replicas_per_worker=2)


@pytest.fixture(scope="module")
def coordination() -> Iterator[Coordination]:
    """Two workers and a server, for all tests of a module."""
    with coordinating(num_workers=2) as coordination:
        yield coordination


@pytest.fixture
def coordinator(coordination: Coordination) -> ClusterCoordinator:
    """The one that schedules on these workers."""
    return coordination.coordinator
