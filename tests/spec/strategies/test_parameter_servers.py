"""ParameterServerStrategy where every worker runs the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import stratagem
from stratagem import ClusterSpec, ParameterServerStrategy, Variable, contrib
from stratagem._core import device_names
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.client.clusters import Cluster, running
from tests.spec.strategies.parameter_servers import strategy_of

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
SERVERS = {"ps": ["p0.test:1", "p1.test:1"]}
CLUSTER = {**SERVERS, "worker": ["w0.test:1", "w1.test:1"]}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(num_servers=2) as cluster:
        yield cluster


@pytest.fixture
def strategy(cluster: Cluster) -> Iterator[ParameterServerStrategy]:
    with cluster.strategy() as strategy:
        yield strategy


@pytest.mark.spec("PS1-1", "PS1-6")
def test_without_a_cluster_the_cpu_computes_and_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    strategy = ParameterServerStrategy()
    assert strategy.extended.worker_devices == [CPU]
    assert strategy.extended.parameter_devices == (CPU,)
    with strategy.scope():
        assert Variable(1.0).device_name == CPU


@pytest.mark.spec("PS1-2")
@pytest.mark.parametrize("task", [(None, None), ("worker", None), (None, 0)])
def test_a_cluster_needs_the_task_of_this_process(task: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="must also specify `task_type` and `task_id`"):
        strategy_of(CLUSTER, *task)


@pytest.mark.spec("PS1-3")
def test_a_cluster_needs_servers() -> None:
    with pytest.raises(ValueError, match="needs to have `ps` jobs"):
        strategy_of({"worker": ["w0.test:1"]}, "worker", 0)


@pytest.mark.parametrize(
    "address",
    ["p0.test", "p0.test:", "p0.test:x", "p0.test:0", ":1", "grpc://p0.test:1"],
)
def test_servers_that_cannot_be_reached_are_told_at_once(address: str) -> None:
    with pytest.raises(ValueError, match=r"/job:ps/task:1 is '.*write it as 'host:port'"):
        strategy_of({**CLUSTER, "ps": ["p0.test:1", address]}, "worker", 0)


def test_tasks_have_no_negative_numbers() -> None:
    with pytest.raises(ValueError, match="`task_id` -1 of 'worker' is negative"):
        strategy_of(CLUSTER, "worker", -1)


def test_an_address_is_no_resolver() -> None:
    resolver: Any = "p0.test:1"
    with pytest.raises(TypeError, match=r"'p0\.test:1' is no ClusterResolver"):
        ParameterServerStrategy(resolver)


@pytest.mark.spec("PS1-4")
def test_the_worker_computes_on_devices_of_its_own(
    strategy: ParameterServerStrategy, four_cpus: None
) -> None:
    own = "/job:worker/replica:0/task:0"
    assert strategy.extended.worker_devices == (f"{own}/device:CPU:0",)
    with strategy.scope():
        assert device_names.current().startswith(own)
        assert strategy.run(device_names.current) == f"{own}/device:CPU:0"
    several = strategy_of(CLUSTER, "worker", 1, num_replicas_per_worker=2)
    assert several.extended.worker_devices == tuple(
        f"/job:worker/replica:0/task:1/device:CPU:{index}" for index in range(2)
    )


def servers_of(variables: list[Variable]) -> list[int]:
    return [int(device_names.DeviceName.parse(v.device_name).task or 0) for v in variables]


@pytest.mark.spec("PS1-5")
def test_variables_take_turns_on_the_servers(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        first = [Variable(1.0), Variable(1.0)]
        with stratagem.device("/job:ps/task:0"):
            elsewhere = Variable(1.0)
            other = Variable(1.0)
        with strategy.extended.colocate_vars_with(elsewhere):
            beside = Variable(1.0)
        last = Variable(1.0)
    variables = [*first, elsewhere, other, beside, last]
    assert servers_of(variables) == [0, 1, 0, 1, 0, 0]
    assert all(v.device_name.startswith("/job:ps/") for v in variables)


@pytest.mark.spec("PS1-5")
def test_each_strategy_begins_with_the_first_server(cluster: Cluster) -> None:
    for name in "ab":
        with cluster.strategy() as strategy, strategy.scope():
            assert servers_of([Variable(1.0, name="v")]) == [0], name


@pytest.mark.spec("PS2-6")
def test_the_resolver_is_the_one_that_was_given() -> None:
    resolver = SimpleClusterResolver(ClusterSpec(CLUSTER), "", "worker", 0)
    assert ParameterServerStrategy(resolver).cluster_resolver is resolver


@pytest.mark.spec("PS1-7", "PS2-6")
def test_the_replicas_in_sync_are_those_of_the_worker(four_cpus: None) -> None:
    assert strategy_of(CLUSTER, "worker", 0).num_replicas_in_sync == 1
    several = strategy_of(CLUSTER, "worker", 0, num_replicas_per_worker=3)
    assert several.num_replicas_in_sync == 3


@pytest.mark.spec("PS1-8")
def test_values_are_not_reduced_to_another_worker() -> None:
    strategy = strategy_of(CLUSTER, "worker", 0)
    value = torch.ones(2)
    own = strategy.extended.reduce_to("mean", value, "/job:worker/task:0")
    assert own.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="Cannot reduce to another worker"):
        strategy.extended.reduce_to("mean", value, "/job:worker/task:1")


@pytest.mark.spec("PS1-9")
@pytest.mark.parametrize(
    ("job", "task", "chief"),
    [("chief", 0, True), ("worker", 0, False), ("evaluator", 0, True)],
)
def test_the_chief_writes_for_all(job: str, task: int, chief: bool) -> None:
    cluster = {**CLUSTER, "chief": ["c0.test:1"], "evaluator": ["e0.test:1"]}
    extended = strategy_of(cluster, job, task).extended
    assert extended.experimental_between_graph
    assert extended.experimental_should_init is chief
    assert extended.should_checkpoint is chief
    assert extended.should_save_summary is chief


@pytest.mark.spec("PS1-12")
def test_functions_run_where_the_variable_is(strategy: ParameterServerStrategy) -> None:
    extended = strategy.extended
    with strategy.scope():
        variables = [Variable(1.0, name=name) for name in ("b", "a")]
        extended.update(variables[0], lambda v, x: v.assign_add(x), args=(2.0,))
        home = extended.non_slot_devices(variables)
        assert home is variables[1]
        with extended.colocate_vars_with(home):
            steps = Variable(0.0)
        extended.update_non_slot(home, lambda c: c.assign_add(1.0), args=(steps,))
        assert extended.value_container(variables[0]) is variables[0]
    assert [v.read_value().item() for v in (*variables, steps)] == [3.0, 1.0, 1.0]


@pytest.mark.spec("PS1-13")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_first_version_leaves_out_what_it_did_not_do() -> None:
    strategy = contrib.ParameterServerStrategy()
    for missing in ("is_single_tower", "worker_device_index"):
        with pytest.raises(NotImplementedError, match=f"Strategy has no {missing}"):
            getattr(strategy, missing)
    with pytest.raises(NotImplementedError, match="has no run_steps_on_dataset"):
        strategy.run_steps_on_dataset(lambda context, x: x, iter([1]))


@pytest.mark.spec("PS2-2")
def test_jobs_have_the_names_of_roles() -> None:
    with pytest.raises(ValueError, match="Disallowed task type found in cluster spec") as e:
        strategy_of({**CLUSTER, "somejob": ["s:1"]}, "worker", 0)
    assert all(job in str(e.value) for job in ("chief", "worker", "evaluator", "ps"))
