"""The strategy of TensorFlow 1.12 for accelerators, on those of two hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import ConfigProto, OutOfRangeError, Variable, config, contrib
from stratagem.cluster_resolver import TPUClusterResolver
from stratagem_deploy import LocalCluster
from tests.spec.towers.tpu_cores import FIRST, MEAN, SUM, numbers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def resolver() -> Iterator[TPUClusterResolver]:
    with LocalCluster(ps=0, worker_servers=2) as cluster:
        known = cluster.cluster_resolver
        addresses = known.cluster_spec().job_tasks("worker")
        resolver = TPUClusterResolver(",".join(map(str, addresses)))
        resolver.cluster_token = known.cluster_token
        yield resolver


@pytest.fixture
def strategy(resolver: TPUClusterResolver) -> Iterator[contrib.TPUStrategy]:
    config.set_logical_cpus(2)
    strategy = contrib.TPUStrategy(resolver, steps_per_run=3)
    yield strategy
    strategy.finalize()
    config.set_logical_cpus(1)


@pytest.fixture
def in_scope(strategy: contrib.TPUStrategy) -> Iterator[None]:
    with strategy.scope():
        yield


def tower() -> contrib.TowerContext:
    found = contrib.get_tower_context()
    assert found is not None
    return found


def elements() -> list[torch.Tensor]:
    return list(torch.arange(14.0))


@pytest.mark.spec("TPU-2", "TPU-3", "TPU-4", "TPU-24")
def test_the_cores_of_all_hosts_are_known(
    resolver: TPUClusterResolver, strategy: contrib.TPUStrategy
) -> None:
    sizes = strategy.num_hosts, strategy.num_towers_per_host, strategy.num_towers
    assert sizes == (2, 2, 4)
    assert strategy.worker_devices == [
        f"/job:worker/replica:0/task:{host}/device:CPU:{core}" for host in (0, 1) for core in (0, 1)
    ]
    assert strategy.parameter_devices == strategy.worker_devices
    assert strategy.get_host_cpu_device(1) == "/job:worker/task:1/device:CPU:0"
    few = contrib.TPUStrategy(resolver, 1, num_cores=2)
    assert few.num_towers == 2
    assert few.worker_devices == strategy.worker_devices[:2]
    with few.scope():
        assert few.unwrap(few.call_for_each_tower(lambda: tower().tower_id)) == [0, 1]
    few.finalize()


@pytest.mark.spec("RES-21")
def test_a_host_tells_how_many_accelerators_it_has(
    resolver: TPUClusterResolver,
) -> None:
    gpus = {"TPU": torch.cuda.device_count()}
    assert resolver.num_accelerators() == gpus
    assert resolver.num_accelerators("worker", 1) == gpus
    with pytest.raises(ValueError, match="No task with index 2"):
        resolver.num_accelerators("worker", 2)


@pytest.mark.spec("TPU-6", "TPU-7")
def test_a_function_runs_on_the_cores_of_all_hosts(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    index = strategy.worker_device_index
    run = strategy.call_for_each_tower
    found = run(lambda number: (number, tower().tower_id), index)
    assert [strategy.unwrap(each) for each in found] == [[0, 1, 2, 3]] * 2
    kind = run(lambda: type(tower().distribution_strategy).__name__)
    assert kind == "TPUStrategy"


@pytest.mark.spec("TPU-8", "TPU-9", "MSC-1", "MSC-8")
def test_each_host_takes_its_elements_of_every_round(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    dataset = strategy.distribute_dataset(elements)
    assert numbers(dataset) == list(range(14))
    iterator = dataset.make_initializable_iterator()

    def step(context: contrib.MultiStepContext, x: Any) -> None:
        context.set_last_step_output("x", x)
        context.set_last_step_output("sum", x, SUM)
        strategy.call_for_each_tower(lambda x: context.set_non_tensor_output("towers", x.item()), x)

    context = strategy.run_steps_on_dataset(step, iterator, 2)
    assert numbers(context.last_step_outputs["x"]) == [4, 5, 6, 7]
    assert context.last_step_outputs["sum"].item() == 22
    assert context.non_tensor_outputs == {"towers": [4, 5, 6, 7]}
    context = strategy.run_steps_on_dataset(step, iterator)
    assert numbers(context.last_step_outputs["x"]) == [8, 9, 10, 11]
    with pytest.raises(OutOfRangeError, match="End of sequence"):
        strategy.run_steps_on_dataset(step, iterator)
    iterator.initialize()
    context = strategy.run_steps_on_dataset(step, iterator)
    assert numbers(context.last_step_outputs["x"]) == [0, 1, 2, 3]


@pytest.mark.spec("TPU-10")
def test_hosts_are_connected_and_left(strategy: contrib.TPUStrategy) -> None:
    assert strategy.initialize() is None
    with strategy.scope():
        v = Variable(3.0)
        assert numbers(strategy.unwrap(strategy.call_for_each_tower(v.read_value))) == [3] * 4
        assert strategy.finalize() is None
        assert v.read_value().item() == 3


@pytest.mark.spec("TPU-11", "TWR-3")
def test_towers_of_all_hosts_meet_in_a_merge_call(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    def merge(strategy: contrib.DistributionStrategy, value: Any) -> Any:
        with pytest.raises(NotImplementedError, match="only support sum & mean"):
            strategy.reduce(FIRST, value, value)
        return strategy.reduce(MEAN, value, value)

    def fn() -> Any:
        return tower().merge_call(merge, torch.tensor(float(tower().tower_id)))

    found = strategy.call_for_each_tower(fn)
    assert numbers(strategy.unwrap(found)) == [1.5] * 4


@pytest.mark.spec("TPU-12")
def test_what_all_cores_have_is_reduced_to_the_first_host(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    found = strategy.call_for_each_tower(lambda: torch.tensor(tower().tower_id))
    host = strategy.get_host_cpu_device(0)
    assert strategy.reduce(SUM, found, host).item() == 6
    with pytest.raises(ValueError, match="the CPU of the first host"):
        strategy.reduce(SUM, found, strategy.get_host_cpu_device(1))


@pytest.mark.spec("TPU-14", "TPU-17", "VAR-8")
def test_every_core_has_a_copy_of_a_variable(strategy: contrib.TPUStrategy, in_scope: None) -> None:
    v = Variable(1.0, aggregation=SUM)

    def step() -> Any:
        v.assign_add(torch.tensor(1.0))
        return v.read_value()

    assert numbers(strategy.unwrap(strategy.call_for_each_tower(step))) == [5] * 4
    strategy.update(v, lambda copy: copy.assign_add(2.0))
    assert strategy.read_var(v).item() == 7
    assert numbers(strategy.unwrap(strategy.call_for_each_tower(v.read_value))) == [7] * 4


@pytest.mark.spec("TPU-23")
def test_a_session_is_told_of_the_hosts(
    resolver: TPUClusterResolver, strategy: contrib.TPUStrategy
) -> None:
    session = ConfigProto()
    strategy.configure(session)
    assert session.isolate_session_state
    assert session.cluster_def == resolver.cluster_spec().as_cluster_def()


@pytest.mark.spec("TPU-9")
def test_a_program_of_then_trains_on_hosts(strategy: contrib.TPUStrategy) -> None:
    with strategy.scope():
        model = nn.Linear(1, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = stratagem.DistributedOptimizer(sgd)

    def tower_fn(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = (model(x) - 2 * x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def step(context: contrib.MultiStepContext, x: Any) -> None:
        losses = strategy.call_for_each_tower(tower_fn, x)
        context.set_last_step_output("loss", losses, MEAN)

    with strategy.scope():
        dataset = strategy.distribute_dataset(lambda: [torch.ones(2, 1)] * 160)
        iterator = dataset.make_one_shot_iterator()
        before = strategy.run_steps_on_dataset(step, iterator)
        after = strategy.run_steps_on_dataset(step, iterator, 39)
    losses = [each.last_step_outputs["loss"].item() for each in (before, after)]
    assert losses[1] < losses[0] / 100
