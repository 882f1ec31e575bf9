"""Servers with a backup on hosts of their own, whose primary is cut off in each direction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest

from benchmarks.harness.network import Network
from stratagem_proto.v1.replication_pb2 import View
from tests.demo import CLOSE, DEMO_RMSE, demo_error
from tests.netns.conftest import Cluster
from tests.netns.control_plane import ControlPlane
from tests.netns.training import (
    MEGABYTE,
    STEPS,
    TRAINED_FOR_A_WHILE,
    WORKERS,
    grows,
    updates,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.netns, pytest.mark.timeout(3600)]

PATIENCE = 900.0

CUTS: Mapping[str, Callable[[Network, str], None]] = {
    "hears nobody": Network.deafen,
    "is heard by nobody": Network.mute,
    "is cut off": Network.cut,
}


def test_a_primary_that_is_cut_off_in_any_direction_is_replaced_and_answers_nothing(
    replicated_cluster: tuple[Cluster, ControlPlane],
) -> None:
    cluster, plane = replicated_cluster
    for host in cluster.hosts.values():
        host.start()
    grows(cluster, "worker-1", TRAINED_FOR_A_WHILE)
    for how, cut in CUTS.items():
        lost, seconds = lose_primary(cluster, plane, cut)
        print(f"\n{lost} {how}: replaced after {seconds[0]:.1f} s, used after {seconds[1]:.1f} s")
        cluster.network.heal(lost)
        assert with_backup(plane).backup.address.startswith(f"{lost}.")

    for name in WORKERS:
        assert cluster.hosts[name].exit_code(seconds=PATIENCE) == 0, cluster.hosts[name].log
    print(cluster.hosts["worker-0"].log)
    assert abs(demo_error(cluster.hosts["worker-0"].log) - DEMO_RMSE) < CLOSE
    primaries = [plane.view(task).primary.address for task in range(2)]
    asked = cluster.hosts["ps-0-0"]
    assert updates(asked, primaries) == {STEPS * len(WORKERS)}


def with_backup(plane: ControlPlane) -> View:
    """The view of the first task, once it has a backup."""
    eventually(lambda: plane.view(0).HasField("backup"), PATIENCE, poll=0.2)
    return plane.view(0)


def lose_primary(
    cluster: Cluster, plane: ControlPlane, cut: Callable[[Network, str], None]
) -> tuple[str, tuple[float, float]]:
    """Cuts the primary of the first task off until workers go on with its backup.

    Returns:
        Its host, and the seconds until the backup was the primary, and until workers went on.
    """
    former = with_backup(plane)
    lost = former.primary.address.partition(".")[0]
    cut(cluster.network, lost)
    began = time.monotonic()
    eventually(lambda: plane.view(0).primary == former.backup, PATIENCE, poll=0.1)
    replaced = time.monotonic() - began
    grows(cluster, "worker-1", MEGABYTE)
    return lost, (replaced, time.monotonic() - began)
