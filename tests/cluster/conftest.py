"""Programs on a cluster with faults, which their module shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratagem_deploy import LocalCluster
from tests.cluster.preemption import Preemptions, Training, training_on


@pytest.fixture
def preemptions(cluster: LocalCluster) -> Iterator[Preemptions]:
    """What ends tasks of the cluster; those that are dead come back after the test."""
    found = Preemptions(cluster)
    yield found
    found.revive()


@pytest.fixture
def training(preemptions: Preemptions) -> Iterator[Training]:
    """A program that waits for its servers and workers."""
    with training_on(preemptions.cluster) as found:
        yield found
