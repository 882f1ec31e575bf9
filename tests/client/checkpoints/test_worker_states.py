"""How far workers have read their data, in checkpoints."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    ClusterSpec,
    DistributedOptimizer,
    ParameterServerStrategy,
    Variable,
)
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy.checkpoints.writing import reshard
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.checkpoints import load_from
from tests.client.clusters import running
from tests.conftest import TOKEN
from tests.full import a_few
from tests.waiting import eventually

CHECKPOINTS = 40
Program = Callable[[ParameterServerStrategy, int], Any]


class Counter:
    """Counts, and goes on from where it was."""

    def __init__(self, count: Any = 0) -> None:
        self.count = count

    def state_dict(self) -> Any:
        return self.count

    def load_state_dict(self, state_dict: Any) -> None:
        self.count = state_dict


def positions(path: Path) -> dict[int, Any]:
    """What a checkpoint has of each worker under the name "data"."""
    states = open_checkpoint(path).index.workers["states"]
    return {int(task[-1]): state["data"] for task, state in states.items()}


def save_at_random(strategy: ParameterServerStrategy, root: Path) -> None:
    generator = random.Random(7)
    for _ in range(CHECKPOINTS):
        time.sleep(generator.random() * 0.02)
        strategy.save(root, keep=CHECKPOINTS)


@pytest.mark.full("positions of one worker are shown beside its steps")
def test_positions_fit_to_the_steps_of_workers_that_step_alone(tmp_path: Path) -> None:
    """While two read and train, and the chief saves at any moment."""
    saved = threading.Event()

    def program(strategy: ParameterServerStrategy, worker: int) -> None:
        with strategy.scope():
            counters = [
                [Variable(0.0, name=f"{w}on{server}") for server in range(2)] for w in range(3)
            ]
        if not worker:
            try:
                save_at_random(strategy, tmp_path)
            finally:
                saved.set()
            return

        def step() -> None:
            for counter in counters[worker]:
                counter.assign_add(1.0)

        data = Counter()
        strategy.register_for_checkpointing("data", data)
        while not saved.is_set():
            data.count += 1
            strategy.run(step)

    with running(2, num_workers=3) as cluster:
        cluster.run(program)
    seen = set()
    for number in range(1, CHECKPOINTS + 1):
        checkpoint = tmp_path / f"checkpoint-{number}"
        values, found = load_from(checkpoint), positions(checkpoint)
        for worker in (1, 2):
            steps = float(values[f"{worker}on0"])
            assert found.get(worker, 0) == steps
            seen.add(steps)
    assert len(seen) > CHECKPOINTS / 2


def wait_for_contribution(strategy: ParameterServerStrategy, step: int) -> None:
    """Until a worker's part of a synchronous step counts."""
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    step_tracker = extended._store.step_tracker
    eventually(lambda: step_tracker.contributed() == {"SGD": step})


class Descent:
    """Two parameters on two servers that go down by 1 with each step."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            module = torch.nn.ParameterList([torch.zeros(1), torch.zeros(1)])
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

        def step() -> None:
            for parameter in module:
                parameter.grad = torch.ones(1)
            optimizer.step()

        self.step = step


def test_positions_fit_to_the_steps_of_workers_that_step_together(
    tmp_path: Path,
) -> None:
    """Although one has contributed to a step that is not complete yet."""
    ahead = Queue[ParameterServerStrategy]()

    def program(strategy: ParameterServerStrategy, worker: int) -> None:
        if worker:
            ahead.put(strategy)
        else:
            other = ahead.get(timeout=60)
        descent = Descent(strategy)
        data = Counter()
        strategy.register_for_checkpointing("data", data)
        for number in range(1, 6):
            data.count += 1
            strategy.run(descent.step)
            if not worker and number < 5:
                wait_for_contribution(other, number + 1)
            strategy.save(tmp_path, keep=5)

    with running(2, num_workers=2) as cluster:
        cluster.run(program, consistency="sync")
    for number in range(1, 6):
        checkpoint = tmp_path / f"checkpoint-{number}"
        assert float(load_from(checkpoint)["0"]) == -number
        assert positions(checkpoint) == {0: number, 1: number}


@a_few("when", ["before", "after"], "a state is found alike before and after the strategy is made")
def test_each_worker_goes_on_where_it_was(when: str, tmp_path: Path) -> None:
    """What it registers before it restores, or after."""

    def numbers(context: stratagem.InputContext) -> list[torch.Tensor]:
        start = 100 * context.input_pipeline_id
        return [torch.tensor(start + number) for number in range(20)]

    def taken(restoring: bool) -> Program:
        def program(strategy: ParameterServerStrategy, worker: int) -> list[int]:
            descent = Descent(strategy)
            data = strategy.distribute_datasets_from_function(numbers)
            iterator = iter(data)
            if restoring and when == "after":
                strategy.restore(tmp_path)
            strategy.register_for_checkpointing("data", iterator)
            if restoring and when == "before":
                strategy.restore(tmp_path)
            found = []
            for _ in range(2 + worker):
                found.append(int(next(iterator)))
                strategy.run(descent.step)
            next(iterator)  # taken, but no step was made of it
            strategy.barrier()
            strategy.save(tmp_path)
            strategy.barrier()
            return found

        return program

    for restoring, expected in (
        (False, [[0, 1], [100, 101, 102]]),
        (True, [[2, 3], [103, 104, 105]]),
        (True, [[4, 5], [106, 107, 108]]),
    ):
        with running(2, num_workers=2) as cluster:
            assert cluster.run(taken(restoring)) == expected


def test_positions_stay_when_servers_become_more(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        strategy.register_for_checkpointing("data", Counter(7))
        strategy.save(tmp_path / "run")
    reshard(open_checkpoint(tmp_path / "run"), tmp_path / "new", servers=2, keep=1)
    with running(2) as cluster, cluster.strategy() as strategy:
        data = Counter()
        strategy.register_for_checkpointing("data", data)
        strategy.restore(tmp_path / "new")
    assert data.count == 7


def test_an_evaluator_waits_for_the_chief_to_restore(tmp_path: Path) -> None:
    """It changes nothing while others train."""
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            steps = Variable(1.0, name="steps")
        spec = {**cluster.spec.as_dict(), "evaluator": ["evaluator.test:1"]}
        resolver = SimpleClusterResolver(ClusterSpec(spec), task_type="evaluator", task_id=0)
        settings: dict[str, Any] = {"token": TOKEN, "peer_seconds": 0.2}
        with ParameterServerStrategy(resolver, **settings) as evaluator:
            strategy.save(tmp_path)
            steps.assign(2.0)
            with pytest.raises(stratagem.DeadlineExceededError, match="the chief"):
                evaluator.restore(tmp_path)
        assert float(steps.numpy()) == 2.0


def test_a_worker_that_has_not_run_yet_keeps_its_position(tmp_path: Path) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> None:
        Descent(strategy)
        strategy.register_for_checkpointing("data", Counter(5 + worker))
        strategy.barrier()
        strategy.save(tmp_path)

    with running(2, num_workers=2) as cluster:
        cluster.run(program)
    assert positions(tmp_path) == {0: 5, 1: 6}


def test_a_position_is_known_to_those_who_meet_its_worker_at_a_barrier(tmp_path: Path) -> None:
    saved = threading.Event()

    def program(strategy: ParameterServerStrategy, worker: int) -> None:
        Descent(strategy)
        strategy.barrier("built")
        strategy.register_for_checkpointing("data", Counter(5 + worker))
        # As by `strategy.barrier`, which then reads parameters, and the chief may be faster.
        strategy.extended._cluster.barrier("met", 0, None)
        if worker:
            assert saved.wait(60)
        else:
            strategy.save(tmp_path)
            saved.set()

    with running(2, num_workers=2) as cluster:
        cluster.run(program)
    assert positions(tmp_path) == {0: 5, 1: 6}


def test_the_next_iterator_takes_the_place_of_the_last(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        strategy.register_for_checkpointing("data", Counter(7))
        strategy.register_for_checkpointing("other", Counter(1))
        strategy.register_for_checkpointing("data", Counter(0))
        strategy.save(tmp_path)
    states = open_checkpoint(tmp_path).index.workers["states"]
    assert states == {"/job:worker/task:0": {"data": 0, "other": 1}}


def test_positions_of_fewer_workers_are_left_alone_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        strategy.register_for_checkpointing("data", Counter(7))
        strategy.save(tmp_path)
    with running(1, num_workers=2) as cluster, cluster.strategy() as strategy:
        data = Counter(3)
        strategy.register_for_checkpointing("data", data)
        with caplog.at_level(logging.WARNING, "stratagem"):
            strategy.restore(tmp_path)
    assert data.count == 3
    assert "states of 1 workers" in caplog.text
    assert "but there are 2 now" in caplog.text


def test_what_cannot_be_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = stratagem.InvalidArgumentError
    with running(1) as cluster, cluster.strategy() as strategy:
        register = strategy.register_for_checkpointing
        with pytest.raises(TypeError, match="list lacks state_dict"):
            register("data", [])
        with pytest.raises(refused, match=r"'data' is not what JSON can express"):
            register("data", Counter(torch.ones(1)))
        with pytest.raises(refused, match=r"'data' are \d+ bytes .* at most"):
            register("data", Counter("a" * 70_000))
        strategy.run(lambda: None)  # nothing was registered
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(refused, match=r"'data' are \d+ bytes .* at most"):
        ParameterServerStrategy().register_for_checkpointing("data", Counter("a" * 70_000))


@a_few("consistency", ["async", "sync"], "the chief waits for whole steps in every mode")
@pytest.mark.parametrize("in_run", [True, False])
def test_a_checkpoint_in_the_midst_of_a_loop_has_whole_steps(
    in_run: bool, consistency: str, tmp_path: Path
) -> None:
    """The loop of the other worker ends when the chief has saved, not before."""
    saved, others = threading.Event(), Queue[ParameterServerStrategy]()

    def program(strategy: ParameterServerStrategy, worker: int) -> None:
        descent, data = Descent(strategy), Counter()
        strategy.register_for_checkpointing("data", data)

        def loop() -> None:
            while data.count < 3 or (worker and not saved.is_set()):
                data.count += 1
                descent.step()

        if worker:
            others.put(strategy)
            strategy.run(loop) if in_run else loop()
            return
        other = others.get(timeout=60)
        if consistency == "async":
            strategy.save(tmp_path)
        else:
            # The other one waits within its fourth step meanwhile.
            loop()
            wait_for_contribution(other, 4)
            strategy.save(tmp_path)
        saved.set()
        if consistency == "sync":
            descent.step()

    with running(2, num_workers=2) as cluster:
        cluster.run(program, consistency=consistency)
    checkpoint = tmp_path / "checkpoint-1"
    values, found = load_from(checkpoint), positions(checkpoint)
    assert values["0"] == values["1"]
    if consistency == "sync":
        assert (float(values["0"]), found) == (-3.0, {0: 3, 1: 3})
    else:
        assert float(values["0"]) == -found.get(1, 0)
