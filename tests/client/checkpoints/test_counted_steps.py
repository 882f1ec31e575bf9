"""Steps that a program counts, in all processes that run it one after the other."""

from __future__ import annotations

import logging
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem import (
    DistributedOptimizer,
    FailedPreconditionError,
    InvalidArgumentError,
    ParameterServerStrategy,
    Variable,
)
from stratagem.coordinator import ClusterCoordinator
from tests.client.clusters import Cluster, running
from tests.client.coordinator.coordination import coordinating
from tests.full import a_few, examples


class Counter:
    """Counts, and goes on from where it was."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> Any:
        return self.count

    def load_state_dict(self, state_dict: Any) -> None:
        self.count = state_dict


class Death(Exception):
    """A process that ends in the midst of a step."""


def build(strategy: ParameterServerStrategy) -> list[Variable]:
    with strategy.scope():
        return [Variable(0.0, name=f"on{server}") for server in range(2)]


def add(cluster: Cluster, stop: int, death: tuple[int, int] = (-1, -1)) -> list[float]:
    """Adds 1 to a variable on each of two servers, twice in each step that is left.

    Dies in a step after so many of these changes.
    """
    with cluster.strategy() as strategy:
        variables = build(strategy)
        data = Counter()
        strategy.register_for_checkpointing("data", data)
        for number in strategy.steps(stop):
            assert data.count == number, "the data goes on where the steps do"
            data.count += 1
            for change, variable in enumerate(2 * variables):
                if death == (number, change):
                    raise Death
                variable.assign_add(1.0)
        return [float(variable.numpy()) for variable in variables]


@pytest.mark.full("servers that are lost, too, are in test_counted_steps_of_lost_servers.py")
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=4))
@settings(max_examples=examples(15), deadline=None)
def test_a_step_that_is_repeated_is_applied_once_on_all_servers(
    deaths: list[tuple[int, int]],
) -> None:
    with running(2) as cluster:
        for death in sorted(deaths):
            with pytest.raises(Death):
                add(cluster, 8, death)
        assert add(cluster, 8) == [16.0, 16.0]
        assert add(cluster, 10) == [20.0, 20.0]


@a_few("consistency", ["async", "bounded", "sync"], "steps are counted before the mode is asked")
@pytest.mark.parametrize("epoch", [0, 2])
def test_an_optimizers_step_that_is_repeated_is_taken_once(consistency: str, epoch: int) -> None:
    with running(2) as cluster:
        for stop in (3, 3, 5):
            with cluster.strategy(consistency=consistency) as strategy:
                with strategy.scope():
                    module = torch.nn.ParameterList([torch.zeros(1), torch.zeros(1)])
                sgd = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.5)
                optimizer = DistributedOptimizer(sgd)
                # Of the first loop no steps are left for those who are started again.
                for _ in chain(strategy.steps(epoch), strategy.steps(stop - epoch)):
                    for parameter in module:
                        parameter.grad = -torch.ones(1)
                    optimizer.step()
                strategy.refresh()
                found = [float(one.detach()) for one in module]
        expected = torch.zeros(1, requires_grad=True)
        plain = torch.optim.SGD([expected], lr=1.0, momentum=0.5)
        for _ in range(5):
            expected.grad = -torch.ones(1)
            plain.step()
        assert found == 2 * [float(expected.detach())]


def test_pushes_in_flight_are_repeated_as_well() -> None:
    with running(2) as cluster:
        for stop in (3, 3, 6):
            with cluster.strategy(pushes_in_flight=1) as strategy:
                with strategy.scope():
                    module = torch.nn.ParameterList([torch.zeros(1), torch.zeros(1)])
                optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

                def step() -> None:
                    for parameter in module:  # noqa: B023 - called at once
                        parameter.grad = -torch.ones(1)
                    optimizer.step()  # noqa: B023 - called at once

                for _ in strategy.steps(stop):
                    strategy.run(step)
                strategy.refresh()
                found = [float(one.detach()) for one in module]
        assert found == [6.0, 6.0]


def test_a_chief_that_saves_before_it_repeats_a_step_does_not_wait_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(2) as cluster:
        with pytest.raises(Death):
            add(cluster, 8, (4, 3))
        # Another task would be waited for, for up to half a minute.
        with cluster.strategy(peer_seconds=600) as strategy:
            build(strategy)
            begun = time.monotonic()
            strategy.save(tmp_path)
            assert time.monotonic() - begun < 15
        assert add(cluster, 6) == [12.0, 12.0]
    assert "task:0 ended within step 5 and has not repeated it" in caplog.text
    assert "Save behind a step" in caplog.text


def test_a_repeated_step_that_does_something_else_is_refused_by_name() -> None:
    with running(2) as cluster:
        with pytest.raises(Death):
            add(cluster, 8, (3, 3))
        with cluster.strategy() as strategy:
            first, second = build(strategy)
            for number in strategy.steps(8):
                assert number == 3
                message = "repeats step 4, and does not do the same.*'on0'"
                with pytest.raises(FailedPreconditionError, match=message):
                    strategy.extended.update(first, lambda value: value.add_(1.0))
                break
            assert [float(first.numpy()), float(second.numpy())] == [8.0, 7.0]


def test_loops_follow_one_another_and_do_not_nest() -> None:
    with running(2) as cluster:
        with cluster.strategy() as strategy:
            (count, _) = build(strategy)
            taken = []
            for _ in range(2):
                for number in strategy.steps(3):
                    taken.append(number)
                    count.assign_add(1.0)
                    with pytest.raises(FailedPreconditionError, match="within another"):
                        next(strategy.steps(3))
            assert taken == [0, 1, 2, 0, 1, 2]
        with cluster.strategy() as strategy:
            (count, _) = build(strategy)
            again = [[*strategy.steps(3)] for _ in range(3)]
            assert again == [[], [2], [0, 1, 2]]
            assert float(count.numpy()) == 6.0


def test_without_a_cluster_steps_are_those_of_a_range() -> None:
    assert [*ParameterServerStrategy().steps(3)] == [0, 1, 2]
    assert [*ParameterServerStrategy().steps(3, start=2)] == [2]


def count_together(strategy: ParameterServerStrategy, stop: int) -> list[float]:
    variables = build(strategy)
    for _ in strategy.steps(stop):
        strategy.run(lambda: [variable.assign_add(1.0) for variable in variables])
    strategy.barrier()
    return [float(variable.numpy()) for variable in variables]


def test_a_program_counts_its_steps_or_coordinates_workers() -> None:
    with coordinating() as coordination:
        with pytest.raises(FailedPreconditionError, match="functions that a ClusterCoordinator"):
            coordination.strategy.steps(3)
        taken: list[int] = []
        with coordination.new_strategy() as strategy:
            for number in strategy.steps(3):
                taken.append(number)
                with pytest.raises(FailedPreconditionError, match="functions that a Cluster"):
                    ClusterCoordinator(strategy)
        assert taken == [0, 1, 2]


def test_a_checkpoint_has_the_position_of_each_worker(tmp_path: Path) -> None:
    """On other servers, and where the chief is ahead."""

    def first(strategy: ParameterServerStrategy, worker: int) -> None:
        count_together(strategy, 5 if worker else 8)
        strategy.save(tmp_path, extra={"step": 8})
        strategy.barrier()

    def second(strategy: ParameterServerStrategy, worker: int) -> tuple[int, list[float]]:
        variables = build(strategy)
        status = strategy.restore(tmp_path)
        assert status.extra == {"step": 8}
        for _ in strategy.steps(10):
            strategy.run(lambda: [variable.assign_add(1.0) for variable in variables])
        strategy.barrier()
        return status.position, [float(variable.numpy()) for variable in variables]

    with running(2, num_workers=2) as cluster:
        cluster.run(first)
    with running(3, num_workers=2) as cluster:
        assert cluster.run(second) == [(8, [20.0, 20.0]), (5, [20.0, 20.0])]


def test_a_position_of_another_number_of_workers_is_not_guessed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(2, num_workers=2) as cluster:
        cluster.run(lambda strategy, worker: count_together(strategy, 5))
        with cluster.strategy() as chief:
            build(chief)
            chief.save(tmp_path)
    with running(2) as cluster, cluster.strategy() as strategy, caplog.at_level(logging.WARNING):
        build(strategy)
        strategy.restore(tmp_path)
        assert "of 2 workers" in caplog.text
        with pytest.raises(FailedPreconditionError, match="does not say how many steps"):
            next(strategy.steps(7))
        assert [*strategy.steps(7, start=5)] == [5, 6]


@pytest.mark.parametrize("victim", [0, 1])
def test_whoever_joins_a_run_without_counting_is_told_and_changes_nothing(
    tmp_path: Path, victim: int
) -> None:
    trained, over = threading.Barrier(3), threading.Event()

    def program(strategy: ParameterServerStrategy, worker: int) -> None:
        (count, _) = build(strategy)
        count.assign_add(1.0)
        strategy.barrier()
        strategy.save(tmp_path, extra={"step": 1})
        strategy.barrier()
        count.assign_add(1.0)
        trained.wait(60)
        if worker != victim:
            assert over.wait(60)

    with running(2, num_workers=2) as cluster:
        thread = threading.Thread(target=cluster.run, args=(program,))
        thread.start()
        try:
            trained.wait(60)
            with cluster.strategy(victim) as strategy:
                data = Counter()
                with strategy.scope():
                    status = strategy.restore(tmp_path)
                    count = Variable(0.0, name="on0")
                    Variable(0.0, name="on1")
                assert float(count.numpy()) == 4.0
                for place in ("extra", "position"):
                    with pytest.raises(FailedPreconditionError, match=r"strategy\.steps"):
                        getattr(status, place)
                with pytest.raises(FailedPreconditionError, match="not counted"):
                    strategy.register_for_checkpointing("data", data)
                with pytest.raises(FailedPreconditionError, match="roll_back"):
                    strategy.restore(tmp_path)
        finally:
            over.set()
            thread.join()


def test_a_worker_that_comes_late_begins_where_the_checkpoint_says(tmp_path: Path) -> None:
    def first(strategy: ParameterServerStrategy, worker: int) -> None:
        count_together(strategy, 4)
        strategy.save(tmp_path / "run", extra={"step": 4})
        strategy.barrier()

    with running(2, num_workers=2) as cluster:
        cluster.run(first)
    with running(2, num_workers=2) as cluster, cluster.strategy(0) as chief:
        build(chief)
        chief.restore(tmp_path / "run")
        for number in chief.steps(6):
            chief.run(lambda: None)
            if number == 5:
                chief.save(tmp_path / "run", extra={"step": 6})
        with cluster.strategy(1) as late:
            build(late)
            status = late.restore(tmp_path / "run")
            assert (status.position, [*late.steps(6)]) == (4, [4, 5])


def test_a_checkpoint_of_another_run_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    def trained(strategy: ParameterServerStrategy, worker: int) -> None:
        count_together(strategy, 4)
        strategy.save(tmp_path / "own")
        strategy.barrier()

    with running(2, num_workers=2) as cluster:
        cluster.run(trained)
        (tmp_path / "own").rename(tmp_path / "other")
    with running(2, num_workers=2) as cluster:
        cluster.run(trained)
        # The chief decides with which checkpoint all of them begin.
        with cluster.strategy(0) as chief:
            build(chief)
            with pytest.raises(FailedPreconditionError, match=r"not saved in it.*roll_back"):
                chief.restore(tmp_path / "other")
            chief.restore(tmp_path / "own")


def test_the_name_of_the_position_is_taken() -> None:
    with (
        running(1) as cluster,
        cluster.strategy() as strategy,
        pytest.raises(InvalidArgumentError, match="is taken"),
    ):
        strategy.register_for_checkpointing("stratagem/steps", Counter())


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_first_checkpoint_that_is_not_whole_yet_is_none_to_restore(
    tmp_path: Path, num_workers: int
) -> None:
    with running(2, num_workers=num_workers) as cluster:
        with cluster.strategy() as strategy:
            build(strategy)
            strategy.save(tmp_path)
        (tmp_path / "latest").unlink()
        with cluster.strategy() as strategy:
            build(strategy)
            strategy.restore(tmp_path).assert_consumed()
            assert [*strategy.steps(2)] == [0, 1]
