"""Workers that join, leave and are lost while a program coordinates them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import ClusterSpec, DistributedOptimizer
from stratagem._coordinator.workers import Attendant, Roster
from stratagem.cluster_resolver import ClusterResolver
from stratagem.coordinator import (
    ClusterCoordinator,
)
from stratagem_proto.errors import (
    AlreadyExistsError,
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    StratagemError,
    UnauthenticatedError,
)
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import Deadlines
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.client.coordinator.coordination import coordinating, new_resolver
from tests.client.coordinator.here import Gate, Journal
from tests.client.coordinator.whereabouts import gone_through, ran_on_each, where
from tests.conftest import TOKEN
from tests.waiting import eventually

# Losses.


def test_a_worker_that_ends_while_it_has_nothing_to_do_is_missed_at_once() -> None:
    with coordinating(num_workers=2) as coordination:
        coordinator = coordination.coordinator
        eventually(lambda: coordinator.workers == [0, 1])
        coordination.stop(1)
        eventually(lambda: coordinator.workers == [0])
        coordination.start(1)
        eventually(lambda: coordinator.workers == [0, 1])


def test_functions_wait_while_another_program_has_a_lost_worker_s_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals: list[StratagemError] = []
    refuse = Roster.refuse

    def noted(roster: Roster, attendant: Attendant, error: StratagemError) -> bool:
        refusals.append(error)
        return refuse(roster, attendant, error)

    monkeypatch.setattr(Roster, "refuse", noted)
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        assert coordinator.schedule(where).fetch() == 0
        coordination.stop(0)
        address = coordination.cluster.task_address("worker", 0)
        with ParameterServer(ServerSettings(bind=address, token=TOKEN)):
            value = coordinator.schedule(where)
            eventually(lambda: len(refusals) > 1)
        coordination.start(0)
        coordinator.join()
        assert value.fetch() == 0
    assert "is no worker server" in str(refusals[0])


def test_who_comes_and_goes_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stratagem")
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        # No other test has a worker of that index.
        coordinator.add_worker(coordination.start_new(90))
        eventually(lambda: coordinator.workers == [0, 90])
        coordination.stop(90)
        eventually(lambda: coordinator.workers == [0])
        coordinator.remove_worker(90)
    name = "/job:worker/task:90"
    records = [one for one in caplog.records if getattr(one, "worker", "") == name]
    events = [getattr(record, "event", None) for record in records]
    assert events == ["joined", "retires", "lost", "left"]
    lost = records[2]
    assert lost.levelname == "WARNING"
    assert f"{name} at 127.0.0.1:" in lost.message


def test_a_worker_that_never_answers_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Functions that wait for it do not wait without a word."""
    monkeypatch.setattr("stratagem._coordinator.workers._ATTEMPT", Deadlines(connect=0.2))

    def with_nobody(cluster: ClusterSpec) -> ClusterResolver:
        workers = [*map(str, cluster.job_tasks("worker")), "127.0.0.1:1"]
        return new_resolver(ClusterSpec({**cluster.as_dict(), "worker": workers}))

    attempts: list[Attendant] = []
    missed = Roster.miss

    def noted(roster: Roster, attendant: Attendant, error: StratagemError) -> None:
        missed(roster, attendant, error)
        attempts.append(attendant)

    monkeypatch.setattr(Roster, "miss", noted)
    with coordinating(num_workers=1, resolver=with_nobody) as coordination:
        eventually(lambda: len(attempts) > 1)
        assert coordination.coordinator.schedule(where).fetch() == 0
    records = [one for one in caplog.records if getattr(one, "event", "") == "missing"]
    (message,) = [record.getMessage() for record in records]
    assert "/job:worker/task:1 at 127.0.0.1:1 did not answer" in message


def test_workers_are_not_missed_after_the_strategy_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        coordinator.add_worker(coordination.start_new(91))
        eventually(lambda: 91 in coordinator.workers)
        gate = Gate()
        value = coordinator.schedule(gate.pass_through)
        gate.wait_for()
        coordination.strategy.close()
        with pytest.raises(CancelledError, match="was aborted"):
            value.fetch()
        with pytest.raises(CancelledError, match="the coordinator is closed"):
            coordinator.schedule(where)
        coordination.stop(91)
    assert "task:91" not in caplog.text


# By the program.


def test_a_worker_joins_under_the_index_that_it_was_started_with() -> None:
    with coordinating(num_workers=1) as coordination:
        address = coordination.start_new(5)
        assert coordination.coordinator.add_worker(address) == 5
        assert ran_on_each(coordination, 2) == {0, 5}


def test_a_worker_that_joins_late_trains_as_the_others() -> None:
    with coordinating(num_workers=1) as coordination:
        coordinator, strategy = coordination.coordinator, coordination.strategy
        with strategy.scope():
            model = nn.Linear(1, 1)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

        def step() -> tuple[str, str, int]:
            def replica_step() -> None:
                optimizer.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()

            strategy.run(replica_step)
            assert isinstance(strategy, stratagem.ParameterServerStrategy)
            cluster = strategy.cluster_resolver.cluster_spec()
            address = cluster.task_address("worker", where())
            return address, strategy.extended.worker_devices[0], where()

        before = model.bias.item()
        coordinator.schedule(step).fetch()
        address = coordination.start_new(7)
        coordinator.add_worker(address)
        coordinator.remove_worker(0)
        device = "/job:worker/replica:0/task:7/device:CPU:0"
        assert coordinator.schedule(step).fetch() == (address, device, 7)
        strategy.refresh()
        assert model.bias.item() == pytest.approx(before - 2)


def test_a_worker_that_joins_makes_datasets_of_its_own() -> None:
    def numbers() -> list[int]:
        return [10 * where(), 10 * where() + 1]

    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        iterator = iter(coordinator.create_per_worker_dataset(numbers))
        assert coordinator.schedule(next, args=(iterator,)).fetch() == 0
        coordinator.add_worker(coordination.start_new(3))
        coordinator.remove_worker(0)
        values = [coordinator.schedule(next, args=(iterator,)) for _ in range(2)]
        assert coordinator.fetch(values) == [30, 31]


def test_a_worker_reads_all_of_a_dataset_whoever_else_is_there() -> None:
    with coordinating(num_workers=1) as coordination:
        coordinator, strategy = coordination.coordinator, coordination.strategy

        def dataset_fn(context: stratagem.InputContext) -> list[torch.Tensor]:
            pipelines = context.num_input_pipelines, context.input_pipeline_id
            return [torch.tensor(pipelines)]

        def distributed() -> Any:
            return strategy.distribute_datasets_from_function(dataset_fn)

        coordinator.add_worker(coordination.start_new(4))
        coordinator.remove_worker(0)
        iterator = iter(coordinator.create_per_worker_dataset(distributed))
        value = coordinator.schedule(next, args=(iterator,))
        assert value.fetch().tolist() == [1, 0]


def test_a_worker_that_joins_sees_what_device_filters_let_it_see() -> None:
    filters = stratagem.ClusterDeviceFilters()
    filters.set_device_filters("worker", 5, ["/job:ps/task:0"])
    with (
        coordinating(num_servers=2) as coordination,
        coordination.new_strategy(device_filters=filters) as strategy,
    ):
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            seen, hidden = (stratagem.Variable(float(server)) for server in range(2))
        assert coordinator.schedule(hidden.read_value).fetch() == 1
        coordinator.add_worker(coordination.start_new(5))
        for worker in range(2):
            coordinator.remove_worker(worker)
        assert coordinator.schedule(seen.read_value).fetch() == 0
        value = coordinator.schedule(hidden.read_value)
        with pytest.raises(FailedPreconditionError, match="invisible to /job:worker/t"):
            value.fetch()


def test_what_a_leaving_worker_runs_ends_there_and_what_waits_goes_elsewhere() -> None:
    gate, journal = Gate(), Journal()

    def noted(number: int) -> int:
        journal.write(number)
        return where()

    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        first = coordinator.schedule(gone_through, args=(gate,))
        gate.wait_for()
        others = [coordinator.schedule(noted, args=(n,)) for n in range(3)]
        coordinator.add_worker(coordination.start_new(1))
        coordinator._dispatch.remove(0)
        assert coordinator.fetch(others) == [1, 1, 1]
        gate.open()
        assert first.fetch() == 0
        eventually(lambda: coordinator.workers == [1])
    assert sorted(journal.entries) == [0, 1, 2], "each ran once"


def test_a_worker_may_be_lost_while_it_leaves() -> None:
    gate = Gate()
    with coordinating(num_workers=2) as coordination:
        coordinator = coordination.coordinator
        values = [coordinator.schedule(gone_through, args=(gate,)) for _ in range(2)]
        gate.wait_for(2)
        coordinator._dispatch.remove(0)
        coordination.stop(0)
        eventually(lambda: coordinator.workers == [1])
        gate.open()
        assert coordinator.fetch(values) == [1, 1]
        with pytest.raises(InvalidArgumentError, match=r"no worker 0.*\[1\]"):
            coordinator.remove_worker(0)


def test_a_worker_that_is_away_can_leave() -> None:
    with coordinating(num_workers=2) as coordination:
        coordinator = coordination.coordinator
        coordination.stop(0)
        eventually(lambda: coordinator.workers == [1])
        coordinator.remove_worker(0)
        coordination.start(0)
        assert ran_on_each(coordination, 1) == {1}
        address = coordination.cluster.task_address("worker", 0)
        assert coordinator.add_worker(address) == 0
        assert ran_on_each(coordination, 2) == {0, 1}


def test_workers_that_have_left_may_be_followed_by_those_with_more_gpus(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        eventually(lambda: coordinator.workers == [0])
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        coordinator.add_worker(coordination.start_new(1))
        eventually(lambda: "Mismatched number of GPUs" in caplog.text)
        coordinator.remove_worker(0)
        eventually(lambda: coordinator.workers == [1])


def test_functions_wait_while_all_workers_have_left() -> None:
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        coordinator.remove_worker(0)
        value = coordinator.schedule(where)
        coordinator.add_worker(coordination.start_new(2))
        assert value.fetch() == 2


def test_an_index_is_one_worker_s() -> None:
    with coordinating(num_workers=2) as coordination:
        address = coordination.cluster.task_address("worker", 1)
        with pytest.raises(AlreadyExistsError, match="--task 2"):
            coordination.coordinator.add_worker(address)


def test_a_worker_that_cannot_be_used_does_not_join() -> None:
    settings = WorkerSettings(task=1, token="another cluster's secret")
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        with (
            WorkerServer(settings) as stranger,
            pytest.raises(UnauthenticatedError, match="token"),
        ):
            coordinator.add_worker(stranger.address)
        server = coordination.cluster.task_address("ps", 0)
        with pytest.raises(stratagem.UnimplementedError, match="is no worker server"):
            coordinator.add_worker(server)
        assert ran_on_each(coordination, 1) == {0}


def test_a_server_of_another_job_is_no_worker() -> None:
    settings = WorkerSettings(job="helper", task=1, token=TOKEN)
    with (
        coordinating(num_workers=1) as coordination,
        WorkerServer(settings) as helper,
        pytest.raises(FailedPreconditionError, match="--job worker"),
    ):
        coordination.coordinator.add_worker(helper.address)
