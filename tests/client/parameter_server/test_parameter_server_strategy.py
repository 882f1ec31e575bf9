"""ParameterServerStrategy: what it is given, and how workers meet."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    ContextError,
    DeadlineExceededError,
    DistributedOptimizer,
    InvalidArgumentError,
    ParameterServerStrategy,
    UnauthenticatedError,
    Variable,
    config,
)
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.client.clusters import Cluster
from tests.client.networks import equal, loss_of, network, training_step
from tests.conftest import TOKEN


def test_construction_connects_to_nothing() -> None:
    strategy = Cluster(["nowhere.invalid:1", "nowhere.invalid:2"], 1).strategy()
    assert strategy.num_replicas_in_sync == 1
    assert strategy.extended.parameter_devices == ("/job:ps/task:0", "/job:ps/task:1")
    assert strategy.extended.worker_devices == ("/job:worker/replica:0/task:0/device:CPU:0",)


def test_a_cluster_needs_parameter_servers() -> None:
    resolver = SimpleClusterResolver(
        stratagem.ClusterSpec({"worker": ["w:1"]}), task_type="worker", task_id=0
    )
    with pytest.raises(InvalidArgumentError, match="needs to have `ps` jobs"):
        ParameterServerStrategy(resolver)


def test_a_cluster_needs_a_task() -> None:
    spec = stratagem.ClusterSpec({"worker": ["w:1"], "ps": ["p:1"]})
    with pytest.raises(InvalidArgumentError, match="must also specify `task_type`"):
        ParameterServerStrategy(SimpleClusterResolver(spec))


def test_the_cluster_comes_from_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["c:1"], "worker": ["w:1"], "ps": ["p:1", "p:2"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    strategy = ParameterServerStrategy()
    assert len(strategy.extended.parameter_devices) == 2
    assert not strategy.extended.should_checkpoint
    assert strategy.cluster_resolver.task_id == 0


def test_synchronous_replicas_are_numbered_over_all_workers() -> None:
    config.set_logical_cpus(2)
    try:
        cluster = Cluster(["p:1"], 3)
        strategy = cluster.strategy(2, consistency="sync", num_replicas_per_worker=2)
        assert strategy.num_replicas_in_sync == 6
        assert strategy.extended._first_replica_id == 4
        assert cluster.strategy(2, num_replicas_per_worker=2).num_replicas_in_sync == 2
    finally:
        config.set_logical_cpus(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"consistency": "eventual"}, "must be one of async, bounded, sync"),
        ({"num_replicas_per_worker": 9}, "config.set_logical_cpus"),
        ({"num_replicas_per_worker": 0}, "num_replicas_per_worker is 0"),
    ],
)
def test_a_setting_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Cluster(["p:1"], 1).strategy(**settings)


def test_a_program_has_no_token_that_could_be_guessed() -> None:
    with pytest.raises(InvalidArgumentError, match=r"has 5 bytes.*make another by 'openssl rand"):
        Cluster(["p:1"], 1).strategy(token="short")


def test_the_token_comes_from_a_file(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    monkeypatch.setenv("STRATAGEM_TOKEN_FILE", str(path))
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        cluster.strategy(token=None)
    for content in ("that of another cluster", TOKEN):
        path.write_text(content + "\n")
        with cluster.strategy(token=None) as strategy, strategy.scope():
            if content == TOKEN:
                Variable(1.0)
                continue
            with pytest.raises(UnauthenticatedError):
                Variable(1.0)


def test_a_deep_copy_is_another_strategy_for_the_same_cluster(
    strategy: ParameterServerStrategy,
) -> None:
    other = copy.deepcopy(strategy)
    with strategy.scope():
        Variable(1.0, name="v")
    with strategy.scope(), pytest.raises(ContextError, match="Mixing different"):
        other.run(lambda: None)
    assert [place.name for place in other.extended.variable_placements()] == ["v"]
    other.close()


def test_without_a_cluster_variables_stay_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = ParameterServerStrategy()
    with strategy.scope():
        module = network()
        counter = Variable(0.0)
    optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))
    plain = network()
    reference = torch.optim.Adam(plain.parameters(), lr=0.1)
    for _ in range(5):
        strategy.run(training_step(module, optimizer))
        reference.zero_grad()
        loss_of(plain).backward()
        reference.step()
    strategy.barrier()
    assert equal(module, plain)
    assert counter.device_name == "/job:localhost/replica:0/task:0/device:CPU:0"
    places = strategy.extended.variable_placements()
    assert {place.server for place in places} == {"/job:localhost/task:0"}


def test_a_value_cannot_be_reduced_to_another_worker(
    strategy: ParameterServerStrategy,
) -> None:
    value = torch.ones(2)
    own = strategy.extended.reduce_to("mean", value, "/job:worker/task:0")
    assert torch.equal(own, value)
    with pytest.raises(InvalidArgumentError, match="Cannot reduce to another worker"):
        strategy.extended.reduce_to("mean", value, "/job:worker/task:1")


def test_values_are_reduced_to_where_a_variable_is_used(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable([1.0])
    pairs = [(torch.ones(1), v), (torch.zeros(1), v)]
    first, second = strategy.extended.batch_reduce_to("mean", pairs)
    assert (first.item(), second.item()) == (1.0, 0.0)


def test_workers_meet_at_a_barrier_and_then_see_each_others_work(
    cluster: Cluster,
) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        with strategy.scope():
            counter = Variable(0.0, name="counter")
        seen = []
        for _ in range(5):
            counter.assign_add(1.0)
            strategy.barrier("written")
            seen.append(counter.read_value().item())
            strategy.barrier("read")
        return seen

    assert cluster.run(program) == [[2.0, 4.0, 6.0, 8.0, 10.0]] * 2


def test_a_worker_that_is_started_again_alone_meets_the_others(
    cluster: Cluster,
) -> None:
    def pass_barrier(worker: int, times: int) -> None:
        with cluster.strategy(worker, peer_seconds=20) as strategy:
            for _ in range(times):
                strategy.barrier("again")

    with ThreadPoolExecutor(1) as threads:
        others = threads.submit(pass_barrier, 0, 3)
        pass_barrier(1, times=1)
        pass_barrier(1, times=2)
        others.result()


def test_a_barrier_that_is_not_reached_by_all_names_those_that_came(
    strategy: ParameterServerStrategy,
) -> None:
    with pytest.raises(DeadlineExceededError, match="/job:worker/task:0"):
        strategy.barrier("lonely", timeout=0.1)


def test_placements_tell_name_shape_server_and_bytes(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        module = network()
    table = [
        (place.name, place.shape, place.server, place.nbytes)
        for place in strategy.extended.variable_placements()
    ]
    assert table == [
        ("0.weight", (4, 3), "/job:ps/task:0", 48),
        ("2.weight", (1, 4), "/job:ps/task:0", 16),
        ("0.bias", (4,), "/job:ps/task:1", 16),
        ("2.bias", (1,), "/job:ps/task:1", 4),
    ]
    assert sum(p.nbytes for p in module.parameters()) == sum(row[-1] for row in table)
