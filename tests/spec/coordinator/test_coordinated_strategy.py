"""ParameterServerStrategy where one program schedules functions on workers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import torch

import stratagem
from stratagem import ConfigProto, FailedPreconditionError, ParameterServerStrategy
from stratagem.coordinator import ClusterCoordinator, RemoteValueStatus
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.conftest import TOKEN
from tests.spec.strategies.parameter_servers import strategy_of
from tests.waiting import eventually

CHIEF = {"chief": ["chief.test:1"]}
WORKER = {"worker": ["w0.test:1"]}


@pytest.mark.spec("PS2-5")
def test_a_coordinator_waits_for_servers_and_workers_to_start() -> None:
    with ExitStack() as tasks:
        free = [tasks.enter_context(closing(ReservedAddress())) for _ in range(2)]
        cluster = {**CHIEF, "ps": [str(free[0])], "worker": [str(free[1])]}
        strategy = strategy_of(cluster, "chief", 0, token=TOKEN)
        tasks.enter_context(strategy)
        coordinator = ClusterCoordinator(strategy)
        value = coordinator.schedule(lambda: strategy.extended.worker_devices)
        assert value.status is RemoteValueStatus.NOT_READY
        worker = WorkerSettings(bind=cluster["worker"][0], token=TOKEN)
        tasks.enter_context(WorkerServer(worker))
        server = ServerSettings(bind=cluster["ps"][0], token=TOKEN)
        tasks.enter_context(ParameterServer(server))
        with strategy.scope():
            variable = stratagem.Variable(2.0)
        assert variable.numpy() == 2
        assert value.fetch() == ("/job:worker/replica:0/task:0/device:CPU:0",)
        own = strategy.extended.worker_devices
        assert own == ("/job:chief/replica:0/task:0/device:CPU:0",)


@pytest.mark.spec("PS2-7")
def test_workers_have_equally_many_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with coordinating(num_workers=2) as coordination:
        coordinator = coordination.coordinator
        eventually(lambda: len(coordinator._dispatch._roster.there) == 2)
        coordination.stop(1)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        coordination.start(1)
        with pytest.raises(ValueError, match="Mismatched number of GPUs per worker"):
            eventually(lambda: not coordinator.done())


@pytest.mark.spec("PS2-8")
def test_a_worker_sees_no_other_worker(coordination: Coordination) -> None:
    strategy = coordination.strategy

    def filters() -> list[str]:
        return list(strategy.update_config_proto(ConfigProto()).device_filters)

    def reduce_to_others() -> None:
        for worker in range(2):
            strategy.extended.reduce_to("sum", torch.ones(2), f"/job:worker/task:{worker}")

    coordinator = coordination.coordinator
    own, *others = coordinator.schedule(filters).fetch()
    assert own.startswith("/job:worker/task:")
    assert others == ["/job:ps", "/job:chief"]
    assert filters() == []
    coordinator.schedule(reduce_to_others)
    with pytest.raises(ValueError, match="Cannot reduce to another worker"):
        coordinator.join()


@pytest.mark.spec("PS2-8")
def test_a_server_sees_no_other_server() -> None:
    cluster = {**CHIEF, **WORKER, "ps": ["p0.test:1", "p1.test:1"]}
    assert strategy_of(cluster, "ps", 0).extended.parameter_devices == ()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return [one for one in found if "without using `ClusterCoordinator.sched" in one]


@pytest.mark.spec("PS2-10")
@pytest.mark.parametrize("axis", [None, 0])
def test_what_runs_on_the_coordinator_is_warned_of(
    coordination: Coordination, caplog: pytest.LogCaptureFixture, axis: int | None
) -> None:
    strategy = coordination.strategy

    def step() -> Any:
        return strategy.reduce("sum", strategy.run(lambda: torch.ones(2)), axis=axis)

    with caplog.at_level(logging.WARNING, "stratagem"):
        for _ in range(2):
            assert step().sum() == 2
            assert len(warnings_of(caplog)) == 2
            assert coordination.coordinator.schedule(step).fetch().sum() == 2
            assert warnings_of(caplog) == []


def test_nobody_meets_at_a_barrier(
    coordination: Coordination, coordinator: ClusterCoordinator
) -> None:
    strategy = coordination.strategy
    with pytest.raises(FailedPreconditionError, match=r"'x'\) waits .* coordinator\.join\(\)"):
        strategy.barrier("x")
    waiting = coordinator.schedule(lambda: strategy.barrier("y"))
    with pytest.raises(FailedPreconditionError, match="Functions on workers wait for no others"):
        waiting.fetch()
    with pytest.raises(FailedPreconditionError):
        coordinator.join()


@pytest.mark.spec("PS2-10")
def test_without_a_coordinator_nothing_is_warned_of(
    coordination: Coordination, caplog: pytest.LogCaptureFixture
) -> None:
    with coordination.new_strategy() as strategy, caplog.at_level(logging.WARNING):
        assert strategy.run(lambda: 3) == 3
        assert warnings_of(caplog) == []
    with coordination.new_strategy() as strategy, caplog.at_level(logging.WARNING):
        ClusterCoordinator(strategy)
        assert strategy.run(lambda: 3) == 3
        assert len(warnings_of(caplog)) == 1


@pytest.mark.spec("PS2-11")
@pytest.mark.parametrize("reduce_op", ["sum", "mean"])
@pytest.mark.parametrize("value", [3.0, None])
def test_a_plain_value_is_reduced_to_itself(
    coordination: Coordination, reduce_op: str, value: float | None
) -> None:
    strategy = coordination.strategy
    assert strategy.reduce(reduce_op, value) == value
    reduce = strategy.reduce
    scheduled = coordination.coordinator.schedule(reduce, args=(reduce_op, value))
    assert scheduled.fetch() == value


def numbered(context: stratagem.InputContext) -> list[torch.Tensor]:
    assert context.num_input_pipelines == 1
    return [torch.tensor([1.0]), torch.tensor([2.0])]


def datasets(
    strategy: ParameterServerStrategy,
) -> Iterator[stratagem.DistributedDataset]:
    batches = [torch.tensor([1.0]), torch.tensor([2.0])]
    yield strategy.experimental_distribute_dataset(batches)
    yield strategy.distribute_datasets_from_function(numbered)


@pytest.mark.spec("PS2-13")
def test_a_distributed_dataset_is_for_workers(coordination: Coordination) -> None:
    for dataset in datasets(coordination.strategy):
        assert isinstance(dataset, stratagem.DistributedDataset)
        for use in (iter, len, lambda it: it.cardinality):
            with pytest.raises(ValueError, match="create_per_worker_dataset"):
                use(dataset)


def total(batches: Any) -> float:
    return float(sum(batch.sum() for batch in batches))


@pytest.mark.spec("PS2-13", "COO-12")
def test_workers_build_distributed_datasets(coordination: Coordination) -> None:
    coordinator = coordination.coordinator
    for dataset in datasets(coordination.strategy):
        built = coordinator.create_per_worker_dataset(dataset)
        assert built.element_spec.dtype is torch.float32
        assert coordinator.schedule(total, args=(iter(built),)).fetch() == 3


@pytest.mark.spec("PS2-13", "COO-12")
def test_a_worker_distributes_a_dataset_itself(coordination: Coordination) -> None:
    strategy, coordinator = coordination.strategy, coordination.coordinator

    def distributed() -> Any:
        return strategy.experimental_distribute_dataset([torch.ones(2)])

    iterator = iter(coordinator.create_per_worker_dataset(distributed))
    assert coordinator.schedule(total, args=(iterator,)).fetch() == 2


@pytest.mark.spec("PS2-17")
def test_a_deep_copy_begins_anew(coordination: Coordination) -> None:
    strategy = coordination.strategy
    with copy.deepcopy(strategy) as twin:
        assert twin.cluster_resolver is strategy.cluster_resolver
        assert twin.extended._container_strategy() is twin
        assert twin.run(lambda: 3) == 3
        with strategy.scope(), pytest.raises(RuntimeError, match="Mixing different"):
            twin.scope().__enter__()
        assert ClusterCoordinator(twin) is not coordination.coordinator
