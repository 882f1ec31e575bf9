"""Programs that resume: whoever calls it, whenever, goes on where it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import stratagem
from stratagem import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    ParameterServerStrategy,
)
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.checkpoints.test_counted_steps import Death
from tests.client.clusters import Cluster, running
from tests.conftest import TOKEN

Optimizer = type[torch.optim.Adam] | type[torch.optim.SGD]


class Program:
    """A model whose weights grow by 1 in each step of a worker."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        optimizer: Optimizer = torch.optim.SGD,
        width: int = 1,
    ) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.model = torch.nn.ParameterList([torch.zeros(width) for _ in range(2)])
        self.optimizer = stratagem.DistributedOptimizer(optimizer(self.model.parameters(), lr=1.0))

    def step(self) -> None:
        for parameter in self.model:
            parameter.grad = -torch.ones_like(parameter)
        self.optimizer.step()

    def train(self, stop: int, death: int = -1) -> list[int]:
        """Takes the steps that are left, and returns them; dies behind a step."""
        taken = []
        for number in self.strategy.steps(stop):
            taken.append(number)
            self.strategy.run(self.step)
            if number == death:
                raise Death
        return taken

    @property
    def weights(self) -> list[float]:
        self.strategy.refresh()
        return [float(one.detach().sum()) for one in self.model]


class Told(NamedTuple):
    extra: dict[str, Any]
    position: int
    ended: bool
    weights: list[float]


def resumed(cluster: Cluster, folder: Path, worker: int = 0, **settings: Any) -> Told:
    """What a process is told that resumes."""
    with cluster.strategy(worker, **settings) as strategy:
        program = Program(strategy)
        run = strategy.resume(folder)
        return Told(dict(run.extra), run.position, run.ended, program.weights)


def trained(cluster: Cluster, folder: Path, stop: int, end: bool = False) -> list[float]:
    """Resumes, takes the steps that are left, saves or ends, and returns the weights."""
    with cluster.strategy() as strategy:
        program = Program(strategy)
        run = strategy.resume(folder)
        program.train(stop)
        if end:
            run.finish(extra={"steps": stop})
        else:
            strategy.save(folder, extra={"steps": stop})
        return program.weights


def test_the_first_start_begins_and_a_later_cluster_goes_on(tmp_path: Path) -> None:
    with running(2) as cluster:
        assert resumed(cluster, tmp_path / "run") == Told({}, 0, False, [0.0, 0.0])
        assert trained(cluster, tmp_path / "run", 3) == [3.0, 3.0]
    with running(3) as cluster:
        assert resumed(cluster, tmp_path / "run") == Told({"steps": 3}, 3, False, [3.0, 3.0])
        assert trained(cluster, tmp_path / "run", 5) == [5.0, 5.0]


def test_whoever_joins_a_run_leaves_what_is_newer_than_the_checkpoint(tmp_path: Path) -> None:
    with running(2) as cluster:
        trained(cluster, tmp_path, 3)
        with cluster.strategy() as strategy, pytest.raises(Death):
            program = Program(strategy)
            strategy.resume(tmp_path)
            program.train(9, death=6)
        # The step in which it ended is repeated, and counts once.
        assert resumed(cluster, tmp_path) == Told({"steps": 3}, 6, False, [7.0, 7.0])
        assert trained(cluster, tmp_path, 9) == [9.0, 9.0]


def test_a_run_that_has_ended_says_so_to_everybody(tmp_path: Path) -> None:
    ended = Told({"steps": 4}, 4, True, [4.0, 4.0])
    with running(2) as cluster:
        assert trained(cluster, tmp_path, 4, end=True) == [4.0, 4.0]
        assert resumed(cluster, tmp_path) == ended
        assert trained(cluster, tmp_path, 4, end=True) == [4.0, 4.0]
    with running(1) as cluster:
        assert resumed(cluster, tmp_path) == ended
        with pytest.raises(FailedPreconditionError, match="the run has ended"):
            trained(cluster, tmp_path, 5)
        assert resumed(cluster, tmp_path) == ended


def test_servers_that_begin_with_the_last_checkpoint_know_that_it_was_the_last(
    tmp_path: Path,
) -> None:
    with running(1) as cluster:
        trained(cluster, tmp_path, 4, end=True)
    settings = ServerSettings(task=0, token=TOKEN, restore=str(tmp_path))
    with ParameterServer(settings) as server:
        cluster = Cluster([server.address], 1)
        assert resumed(cluster, tmp_path) == Told({"steps": 4}, 4, True, [4.0, 4.0])


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_all_workers_begin_end_and_are_told_of_the_end(tmp_path: Path, consistency: str) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> tuple[int, bool, list[float]]:
        program = Program(strategy)
        run = strategy.resume(tmp_path)
        program.train(5)
        was_over = run.ended
        run.finish({"by": "all"})
        run.finish({"by": "nobody"})
        return run.position, was_over, program.weights

    total = 5.0 if consistency == "sync" else 10.0
    for servers in (2, 3):
        with running(servers, num_workers=2) as cluster:
            for again in range(2):
                told = cluster.run(program, consistency=consistency)
                is_over = bool(again) or servers == 3
                assert told == 2 * [(5 if is_over else 0, is_over, [total, total])]


def test_what_a_chief_begins_with_is_loaded_once(tmp_path: Path) -> None:
    calls = []

    def program(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        program = Program(strategy)

        def load() -> None:
            calls.append(worker)
            program.model.load_state_dict({"0": torch.ones(1), "1": torch.ones(1)})

        strategy.resume(tmp_path, begin=load)
        strategy.barrier("read")
        weights = program.weights
        strategy.barrier("begin")
        program.train(2)
        strategy.barrier("saved")
        strategy.save(tmp_path)
        return weights

    with running(2, num_workers=2) as cluster:
        assert cluster.run(program) == 2 * [[1.0, 1.0]]
        assert cluster.run(program) == 2 * [[5.0, 5.0]]
    assert calls == [0]


def test_a_step_that_was_left_before_it_did_anything_is_not_taken(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        program = Program(strategy)
        run = strategy.resume(tmp_path)
        for number in strategy.steps(5):
            if number == 3:
                break
            strategy.run(program.step)
        strategy.save(tmp_path)
        assert run.position == 0
    with running(1) as cluster:
        assert resumed(cluster, tmp_path).position == 3
        assert trained(cluster, tmp_path, 5) == [5.0, 5.0]


def too_late(strategy: ParameterServerStrategy, folder: Path) -> None:
    Program(strategy).train(1)
    strategy.resume(folder)


def set_before(strategy: ParameterServerStrategy, folder: Path) -> None:
    program = Program(strategy)
    program.model.load_state_dict({"0": torch.ones(1), "1": torch.ones(1)})
    strategy.resume(folder)


def twice(strategy: ParameterServerStrategy, folder: Path) -> None:
    Program(strategy)
    strategy.resume(folder)
    strategy.resume(folder)


def uncounted(strategy: ParameterServerStrategy, folder: Path) -> None:
    program = Program(strategy)
    strategy.resume(folder)
    strategy.run(program.step)


def finished_inside(strategy: ParameterServerStrategy, folder: Path) -> None:
    Program(strategy)
    run = strategy.resume(folder)
    for _ in strategy.steps(1):
        run.finish()


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (too_late, "trained, or set values before resume"),
        (set_before, "trained, or set values before resume"),
        (twice, "trained, or set values before resume"),
        (uncounted, "steps outside of a loop over strategy.steps"),
        (finished_inside, "within a loop over strategy.steps"),
    ],
)
def test_a_program_that_would_go_wrong_when_it_is_started_again_is_refused(
    tmp_path: Path, program: Callable[[ParameterServerStrategy, Path], None], told: str
) -> None:
    with (
        running(1) as cluster,
        cluster.strategy() as strategy,
        pytest.raises(FailedPreconditionError, match=told),
    ):
        program(strategy, tmp_path)


def test_the_checkpoint_of_another_program_is_refused(tmp_path: Path) -> None:
    with running(2) as cluster:
        trained(cluster, tmp_path, 3)
    with running(2) as cluster:
        told = "of which this program has made"
        with cluster.strategy() as strategy, pytest.raises(FailedPreconditionError, match=told):
            strategy.resume(tmp_path)
    with running(2) as cluster, cluster.strategy() as strategy:
        Program(strategy, width=2)
        with pytest.raises(stratagem.InvalidArgumentError, match="with shape"):
            strategy.resume(tmp_path)
    with running(2) as cluster, cluster.strategy() as strategy:
        Program(strategy)
        with strategy.scope():
            stratagem.Variable(0.0, name="more")
        with pytest.raises(NotFoundError, match="'more'"):
            strategy.resume(tmp_path)


def test_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        program = Program(strategy, torch.optim.Adam)
        strategy.resume(tmp_path)
        program.train(1)
        strategy.save(tmp_path)
    with running(1) as cluster, pytest.raises(FailedPreconditionError, match="another optimizer"):
        resumed(cluster, tmp_path)


def test_a_checkpoint_of_steps_that_nobody_counted_is_refused(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        strategy.run(Program(strategy).step)
        strategy.save(tmp_path)
    with running(1) as cluster, pytest.raises(FailedPreconditionError, match="how many steps"):
        resumed(cluster, tmp_path)


def test_another_number_of_workers_is_refused(tmp_path: Path) -> None:
    with running(1) as cluster:
        trained(cluster, tmp_path, 3)
    told = "saved by 1 workers, and here are 2"
    with (
        running(1, num_workers=2) as cluster,
        pytest.raises(FailedPreconditionError, match=told),
    ):
        resumed(cluster, tmp_path)


def test_another_folder_than_that_of_the_run_is_refused(tmp_path: Path) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> str:
        Program(strategy)
        try:
            strategy.resume(tmp_path / str(worker))
        except FailedPreconditionError as error:
            return str(error)
        return ""

    with running(1, num_workers=2) as cluster:
        chief, other = cluster.run(program)
    assert not chief
    assert "the same folder" in other


def test_a_folder_that_no_checkpoint_could_be_saved_to_is_refused_before_training(
    tmp_path: Path,
) -> None:
    missing = tmp_path / "unmounted"
    with running(2) as cluster:
        with pytest.raises(NotFoundError, match="unmounted' to save checkpoints in; make it first"):
            resumed(cluster, missing / "run")
        missing.mkdir()
        assert resumed(cluster, missing / "run") == Told({}, 0, False, [0.0, 0.0])
        assert list((missing / "run").iterdir()) == []


def test_workers_that_leave_the_call_out_are_named(tmp_path: Path) -> None:
    with (
        running(1, num_workers=2) as cluster,
        cluster.strategy(0) as first,
        cluster.strategy(1) as second,
    ):
        chief = Program(first)
        Program(second).train(1)
        with pytest.raises(FailedPreconditionError, match="task:1 trained before"):
            first.resume(tmp_path)
        assert chief.weights == [1.0, 1.0]


def test_a_chief_that_leaves_the_call_out_is_named(tmp_path: Path) -> None:
    with (
        running(1, num_workers=2) as cluster,
        cluster.strategy(0) as first,
        cluster.strategy(1, peer_seconds=0.2) as second,
    ):
        Program(first)
        Program(second)
        with pytest.raises(DeadlineExceededError, match=r"the chief .* call resume\(\) on all"):
            second.resume(tmp_path)


def test_the_end_waits_for_all_workers(tmp_path: Path) -> None:
    with (
        running(1, num_workers=2) as cluster,
        cluster.strategy(0, peer_seconds=0.2) as strategy,
    ):
        Program(strategy)
        run = strategy.resume(tmp_path)
        with pytest.raises((AbortedError, DeadlineExceededError)):
            run.finish()
        assert not run.ended


def taking_turns(strategy: ParameterServerStrategy, folder: Path, death: int) -> list[float]:
    """Steps two optimizers, of which each has gradients of what the other has done."""
    with strategy.scope():
        pair = torch.nn.ParameterList([torch.ones(2), torch.ones(2)])
    optimizers = [
        stratagem.DistributedOptimizer(torch.optim.SGD([one], lr=0.1, momentum=0.5)) for one in pair
    ]

    def step(turn: int) -> None:
        pair[turn].grad = pair[1 - turn].detach().cos()
        optimizers[turn].step()
        if number == death:
            raise Death

    strategy.resume(folder)
    for number in strategy.steps(10):
        strategy.run(step, args=(number % 2,))
    strategy.refresh()
    return [float(one.detach().sum()) for one in pair]


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_two_optimizers_that_take_turns_come_to_the_same_whatever_dies(
    tmp_path: Path, consistency: str
) -> None:
    with running(2) as cluster, cluster.strategy(consistency=consistency) as strategy:
        quiet = taking_turns(strategy, tmp_path / "quiet", -1)
    with running(2) as cluster:
        for death in (0, 1, 4, 7, 9):
            with cluster.strategy(consistency=consistency) as strategy, pytest.raises(Death):
                taking_turns(strategy, tmp_path / "killed", death)
        with cluster.strategy(consistency=consistency) as strategy:
            assert taking_turns(strategy, tmp_path / "killed", -1) == quiet


def test_a_first_step_that_others_have_not_completed_is_in_no_checkpoint(tmp_path: Path) -> None:
    gave_up = threading.Event()

    def alone(strategy: ParameterServerStrategy, worker: int) -> None:
        program = Program(strategy)
        strategy.resume(tmp_path)
        if worker == 1:
            with pytest.raises(DeadlineExceededError):
                program.train(3)
            gave_up.set()
        else:
            assert gave_up.wait(60)
            strategy.save(tmp_path)

    def together(strategy: ParameterServerStrategy, worker: int) -> tuple[int, list[float]]:
        program = Program(strategy)
        run = strategy.resume(tmp_path)
        program.train(3)
        return run.position, program.weights

    with running(2, num_workers=2) as cluster:
        cluster.run(alone, consistency="sync", peer_seconds=8)
    with running(2, num_workers=2) as cluster:
        assert cluster.run(together, consistency="sync") == [(0, [3.0, 3.0])] * 2


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_a_step_within_which_a_worker_has_ended_is_repeated_before_a_checkpoint(
    tmp_path: Path, consistency: str
) -> None:
    ended, begun = threading.Event(), threading.Event()

    def within(program: Program) -> None:
        program.step()
        raise Death

    def dying(cluster: Cluster) -> None:
        with cluster.strategy(1, consistency=consistency) as strategy:
            program = Program(strategy)
            strategy.resume(tmp_path)
            for number in strategy.steps(8):
                strategy.run(within if number == 5 else Program.step, args=(program,))

    def second(cluster: Cluster) -> list[int]:
        with pytest.raises(Death):
            dying(cluster)
        ended.set()
        assert begun.wait(60)
        with cluster.strategy(1, consistency=consistency) as strategy:
            program = Program(strategy)
            strategy.resume(tmp_path)
            return program.train(6)

    def chief(cluster: Cluster) -> None:
        with cluster.strategy(consistency=consistency) as strategy:
            program = Program(strategy)
            strategy.resume(tmp_path)
            program.train(6)
            assert ended.wait(60)
            begun.set()
            strategy.save(tmp_path)

    def all_again(strategy: ParameterServerStrategy, worker: int) -> tuple[list[int], list[float]]:
        program = Program(strategy)
        strategy.resume(tmp_path)
        taken = program.train(8)
        strategy.barrier()
        return taken, program.weights

    with running(2, num_workers=2, rejoin_seconds=60) as cluster, ThreadPoolExecutor(2) as threads:
        first, other = threads.submit(chief, cluster), threads.submit(second, cluster)
        assert other.result() == [5]
        first.result()
    growth = 8.0 if consistency == "sync" else 16.0
    with running(2, num_workers=2) as cluster:
        assert cluster.run(all_again, consistency=consistency) == [([6, 7], [growth, growth])] * 2


def test_a_worker_that_leaves_the_loop_after_a_change_has_taken_the_step(tmp_path: Path) -> None:
    left = threading.Event()

    def first(strategy: ParameterServerStrategy, worker: int) -> None:
        program = Program(strategy)
        strategy.resume(tmp_path)
        for number in strategy.steps(6):
            strategy.run(program.step)
            if number == 3 and worker:
                return
        assert left.wait(60)
        strategy.save(tmp_path)

    def again(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        program = Program(strategy)
        strategy.resume(tmp_path)
        program.train(6)
        strategy.barrier()
        return program.weights

    with running(2, num_workers=2) as cluster, ThreadPoolExecutor(1) as threads:

        def chief() -> None:
            with cluster.strategy() as strategy:
                first(strategy, 0)

        saved = threads.submit(chief)
        with cluster.strategy(1) as strategy:
            first(strategy, 1)
        left.set()
        saved.result()
    with running(2, num_workers=2) as cluster:
        assert cluster.run(again) == [[12.0, 12.0]] * 2
