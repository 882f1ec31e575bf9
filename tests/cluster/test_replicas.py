"""Servers with a backup, whose primary is killed or stopped while programs train."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch

import stratagem
from benchmarks.takeovers import __main__ as takeovers
from benchmarks.takeovers.__main__ import ROUNDS
from stratagem import ParameterServerStrategy, Variable
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster
from stratagem_deploy.watching.asking import ServerAnswer, ServerPlace, ask
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.replica_addresses import replica_addresses
from tests.cluster.training import PATIENCE, STEPS, WORKERS, expected, strategies, trained
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

# Of each kind.
LOSSES = 2


def replicated() -> LocalCluster:
    return LocalCluster(workers=WORKERS, processes=True, replicas=2, start_timeout=PATIENCE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with replicated() as cluster:
        yield cluster


def answers(cluster: LocalCluster) -> list[ServerAnswer]:
    """What both replicas say."""
    resolver = cluster.resolver("worker", 0)
    address = resolver.cluster_spec().task_address("ps", 0)
    places = [
        ServerPlace(each, "ps:0", replica=number)
        for number, each in enumerate(replica_addresses("/job:ps/task:0", address))
    ]
    return ask(places, resolver.cluster_token or "", 10.0)


def primary_process(cluster: LocalCluster) -> int:
    (found,) = [each.status.pid for each in answers(cluster) if each.serves and each.status]
    return found


def has_backup(cluster: LocalCluster) -> bool:
    return any(
        each.serves and each.replication and each.replication.view.HasField("backup")
        for each in answers(cluster)
    )


@pytest.mark.parametrize("consistency", ["async", "bounded", "sync"])
def test_all_steps_count_once_although_the_primary_is_killed(consistency: str) -> None:
    with replicated() as cluster:
        found = trained(cluster, consistency, lambda _: cluster.kill("ps", 0, "primary"))
    assert found == expected(consistency)


@pytest.fixture
def counter(cluster: LocalCluster) -> Iterator[Variable]:
    """What several programs count with, one after the other."""
    with strategies(cluster) as (strategy, _):
        with strategy.scope():
            counter = Variable(torch.tensor(0), False, name="counter")
        counter.assign(torch.tensor(0))
        yield counter


def test_a_primary_that_is_stopped_is_replaced_and_steps_down_when_it_goes_on(
    cluster: LocalCluster, counter: Variable
) -> None:
    counter.assign_add(1)
    stopped = primary_process(cluster)
    os.kill(stopped, signal.SIGSTOP)
    try:
        for _ in range(10):
            counter.assign_add(1)
        assert primary_process(cluster) != stopped
    finally:
        os.kill(stopped, signal.SIGCONT)
    for _ in range(10):
        counter.assign_add(1)
    eventually(lambda: has_backup(cluster), PATIENCE)
    assert primary_process(cluster) != stopped
    # What the former primary may still have believed is not there.
    cluster.kill("ps", 0, "primary")
    counter.assign_add(1)
    assert counter.numpy() == 22
    cluster.restart("ps", 0)


def test_replicas_are_named_by_number_or_standing(cluster: LocalCluster) -> None:
    with pytest.raises(InvalidArgumentError, match="ps:0 has no replica 2; it has 2, from 0"):
        cluster.kill("ps", 0, 2)
    with pytest.raises(InvalidArgumentError, match="has no replica 'spare'"):
        cluster.kill("ps", 0, "spare")  # type: ignore[arg-type]
    with pytest.raises(stratagem.StratagemError, match="all replicas of ps:0 run"):
        cluster.restart("ps", 0)
    before = primary_process(cluster)
    cluster.kill("ps", 0, "backup")
    assert primary_process(cluster) == before
    eventually(lambda: not has_backup(cluster))
    cluster.restart("ps", 0)
    assert has_backup(cluster)


@pytest.mark.parametrize("kind", ROUNDS)
def test_nothing_is_lost_or_doubled_although_primaries_are(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_VERIFY_SECONDS", "0.2")
    with pytest.raises(SystemExit) as ended:
        takeovers.main(LOSSES, kind)
    assert not ended.value.code


def test_functions_of_a_coordinator_count_once_although_the_primary_is_killed() -> None:
    with (
        LocalCluster(
            worker_servers=2, processes=True, replicas=2, start_timeout=PATIENCE
        ) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        with strategy.scope():
            counter = Variable(torch.tensor(0), False, name="counter")
        coordinator = ClusterCoordinator(strategy)

        def add() -> None:
            counter.assign_add(1)

        for _ in range(3 * STEPS):
            coordinator.schedule(add)
        eventually(lambda: bool(counter.numpy() >= STEPS))
        cluster.kill("ps", 0)
        # It may have been the first request of a worker, which only a replica with a backup takes.
        cluster.restart("ps", 0)
        coordinator.join()
        assert counter.numpy() == 3 * STEPS
