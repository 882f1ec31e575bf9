"""Servers refuse the tasks from which device filters hide them, whatever their programs say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stratagem import ClusterDeviceFilters, ParameterServerStrategy, Variable
from stratagem._ps_client.session import Identity
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import PermissionDeniedError
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_WORKER,
    FilteredTask,
    FilteredTasks,
    Task,
)
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster, running
from tests.client.connections import add, connected, make, value_of
from tests.conftest import TOKEN

ONE = torch.ones(1)
HIDDEN = FilteredTask(task=Task(job="worker", index=1), device_filters=["/job:ps/task:1"])
CHIEF = Identity(ROLE_CHIEF, "chief", 0, TOKEN, filtered=FilteredTasks(tasks=[HIDDEN]))
WORKER = Identity(ROLE_WORKER, "worker", 1, TOKEN)
REASON = r"/job:ps/task:0 is invisible to /job:worker/task:1.*\['/job:ps/task:1'\] hide it"


def filters() -> ClusterDeviceFilters:
    """Those of two workers, the second of which sees the first server alone."""
    made = ClusterDeviceFilters()
    made.set_device_filters("worker", 0, ["/job:ps"])
    made.set_device_filters("worker", 1, ["/job:ps/task:0"])
    return made


def created(strategy: ParameterServerStrategy) -> list[Variable]:
    with strategy.scope():
        return [Variable(ONE, name="first"), Variable(ONE, name="second")]


def test_a_worker_that_leaves_the_filters_out_is_refused_by_the_server() -> None:
    with (
        running(num_servers=2, num_workers=2) as cluster,
        cluster.strategy(0, device_filters=filters()) as chief,
    ):
        created(chief)
        denied = pytest.raises(PermissionDeniedError, match="/job:ps/task:1 is invisible to")
        with cluster.strategy(1) as worker, denied:
            created(worker)[1].numpy()


def test_a_worker_that_came_before_is_sent_away() -> None:
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        connected(server.address, replace(CHIEF, filtered=None)) as silent,
        connected(server.address, WORKER) as worker,
        connected(server.address, CHIEF) as chief,
    ):
        make(silent, "v", ONE)
        add(worker, "v", ONE)
        assert value_of(chief, "v", ONE) == 2
        (lost,) = server._state.lost.report(server._state.clock())
        assert lost.why == "the device filters of /job:worker/task:1 hide this server"
        with pytest.raises(PermissionDeniedError, match=REASON):
            add(worker, "v", ONE)
        assert value_of(chief, "v", ONE) == 2


def test_a_chief_that_says_nothing_leaves_filters_as_they_are_and_one_that_has_none_ends_them() -> (
    None
):
    with ParameterServer(ServerSettings(token=TOKEN)) as server:
        with connected(server.address, CHIEF) as chief:
            make(chief, "v", ONE)
        with connected(server.address, replace(CHIEF, filtered=None)) as silent:
            assert value_of(silent, "v", ONE) == 1
        with connected(server.address, WORKER) as worker, pytest.raises(PermissionDeniedError):
            add(worker, "v", ONE)
        with connected(server.address, replace(CHIEF, filtered=FilteredTasks())) as chief:
            assert value_of(chief, "v", ONE) == 1
        with connected(server.address, WORKER) as worker:
            add(worker, "v", ONE)


def test_nobody_but_a_chief_sets_filters() -> None:
    hidden = FilteredTask(task=Task(job="worker", index=2))
    other = replace(WORKER, index=2)
    with ParameterServer(ServerSettings(token=TOKEN)) as server:
        with connected(server.address, replace(CHIEF, filtered=None)) as chief:
            make(chief, "v", ONE)
        told = replace(WORKER, filtered=FilteredTasks(tasks=[hidden]))
        with connected(server.address, told) as worker:
            add(worker, "v", ONE)
        with connected(server.address, other) as worker:
            assert add(worker, "v", ONE)


@pytest.mark.parametrize("log_bytes", [1, 1 << 30], ids=["image", "records"])
def test_a_server_that_is_started_again_knows_the_filters(log_bytes: int, tmp_path: Path) -> None:
    with ReservedAddress() as reserved:
        settings = ServerSettings(
            bind=str(reserved),
            token=TOKEN,
            durability="log",
            durability_folder=str(tmp_path),
            log_bytes=log_bytes,
        )
        with ParameterServer(settings), connected(str(reserved), CHIEF) as chief:
            make(chief, "v", ONE)
        denied = pytest.raises(PermissionDeniedError, match=REASON)
        with ParameterServer(settings), connected(str(reserved), WORKER) as worker, denied:
            add(worker, "v", ONE)


def test_filters_that_hide_nothing_refuse_nobody() -> None:
    with running(num_servers=2, num_workers=2) as cluster:
        seen = ClusterDeviceFilters()
        seen.set_device_filters("worker", 1, ["/job:ps"])

        def count(strategy: ParameterServerStrategy, worker: int) -> None:
            for variable in created(strategy):
                variable.assign_add(ONE)

        Cluster(cluster.servers, 2).run(count, device_filters=seen)
