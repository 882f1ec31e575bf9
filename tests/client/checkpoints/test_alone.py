"""Folders of checkpoints of a program without a cluster; going on in one, and the other way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    DistributedOptimizer,
    FailedPreconditionError,
    NotFoundError,
    ParameterServerStrategy,
)
from stratagem._local.one_process import OneProcessStrategy
from stratagem.nn import Embedding
from stratagem_storage.checkpoint.folder import LOCAL_PART, open_checkpoint
from tests.client.clusters import Cluster, running

# torch says so of its own sparse steps, once a process.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

ROWS = 400


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = Embedding(ROWS, 4)
        self.last = nn.Linear(4, 1)
        self.norm = nn.BatchNorm1d(1)

    def forward(self, users: torch.Tensor) -> torch.Tensor:
        answers: torch.Tensor = self.norm(self.last(self.users(users)))
        return answers


Alone = Callable[[], OneProcessStrategy]
"""Makes a strategy whose variables are in this process."""

ALONE: dict[str, Alone] = {
    "servers": ParameterServerStrategy,
    "one device": lambda: stratagem.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: stratagem.MirroredStrategy(["CPU:0"]),
    "central": lambda: stratagem.CentralStorageStrategy(["CPU:0"]),
}


@pytest.fixture(params=ALONE)
def alone(request: pytest.FixtureRequest) -> Alone:
    return ALONE[request.param]


class Program:
    """A program that trains, and that runs alone or on servers."""

    def __init__(self, strategy: OneProcessStrategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.model = Model()
            self.seen = stratagem.Variable(0.0, name="seen")
        tables = torch.optim.Adagrad(self.model.users.parameters(), lr=0.1)
        dense = [*self.model.last.parameters(), *self.model.norm.parameters()]
        self.optimizers = [
            DistributedOptimizer(tables),
            DistributedOptimizer(torch.optim.Adam(dense, lr=0.1)),
        ]
        data = [torch.arange(first, first + 8) for first in range(0, 80, 8)]
        self.batches = iter(strategy.experimental_distribute_dataset(data))
        strategy.register_for_checkpointing("data", self.batches)

    def step(self) -> float:
        batch = next(self.batches)

        def train(users: torch.Tensor) -> None:
            for one in self.optimizers:
                one.zero_grad()
            (self.model(users) - 1).square().mean().backward()
            for one in self.optimizers:
                one.step()

        self.strategy.run(train, args=(batch,))
        self.seen.assign_add(1.0)
        return float(batch[0])

    def values(self) -> dict[str, torch.Tensor]:
        found = {key: value.clone() for key, value in self.model.state_dict().items()}
        return {**found, "seen": self.seen.read_value().clone()}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(2) as found:
        yield found


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-6, atol=1e-6)


def test_a_folder_keeps_checkpoints_with_extra_and_goes_on_where_the_data_were(
    alone: Alone,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    first = Program(alone())
    for epoch in range(3):
        first.step()
        first.strategy.save(folder, keep=2, extra={"epoch": epoch})
    saved = first.values()
    next(first.batches)  # taken, and in no run
    first.strategy.save(folder, keep=2, extra={"epoch": 3}, wait=False).result()
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == [
        "checkpoint-3",
        "checkpoint-4",
    ]

    second = Program(alone())
    status = second.strategy.restore(folder)
    assert status.assert_consumed().extra == {"epoch": 3}
    assert_same(second.values(), saved)
    assert second.step() == 24.0
    # With the state of its optimizers, it trains as a program that never stopped.
    third = Program(alone())
    third.strategy.restore(folder / "checkpoint-3")
    assert third.step() == 24.0
    assert_same(third.values(), second.values())


def test_an_incremental_checkpoint_has_what_differs_and_is_as_good_as_a_whole_one(
    alone: Alone,
    tmp_path: Path,
) -> None:
    folder, program = tmp_path / "run", Program(alone())
    for _ in range(4):
        program.step()
        program.strategy.save(folder, incremental=True)
    program.strategy.save(tmp_path / "whole")
    last, whole = open_checkpoint(folder), open_checkpoint(tmp_path / "whole")
    assert last.base is not None
    changed = last.index.tensors["users.weight"].changed
    assert changed is not None and changed.count == 8
    for name, entry in whole.index.tensors.items():
        assert torch.equal(last.tensor(last.index.tensors[name]), whole.tensor(entry)), name
    again = Program(alone())
    again.strategy.restore(folder)
    assert_same(again.values(), program.values())


@pytest.mark.parametrize("servers", [1, 3])
def test_a_checkpoint_of_a_lone_program_goes_on_in_a_cluster(tmp_path: Path, servers: int) -> None:
    alone = Program(ParameterServerStrategy())
    for step in alone.strategy.steps(5):
        alone.step()
        if step == 2:
            alone.strategy.save(tmp_path / "run", extra={"step": step})
    with running(servers) as cluster, cluster.strategy() as strategy:
        program = Program(strategy)
        status = strategy.restore(tmp_path / "run")
        assert (status.extra, status.position) == ({"step": 2}, 3)
        left = [(step, program.step()) for step in strategy.steps(5)]
        assert left == [(3, 24.0), (4, 32.0)]
        assert_same(program.values(), alone.values())


def test_a_checkpoint_of_a_cluster_goes_on_alone_and_beside_it_increments(
    cluster: Cluster, tmp_path: Path
) -> None:
    with cluster.strategy() as strategy:
        program = Program(strategy)
        for step in strategy.steps(5):
            program.step()
            if step == 2:
                strategy.save(tmp_path / "run", extra={"step": step})
        expected = program.values()
    alone = Program(ParameterServerStrategy())
    status = alone.strategy.restore(tmp_path / "run").assert_consumed()
    assert (status.extra, status.position) == ({"step": 2}, 3)
    for _ in alone.strategy.steps(5):
        alone.step()
    assert_same(alone.values(), expected)
    alone.strategy.save(tmp_path / "run", keep=2, incremental=True)
    again = Program(ParameterServerStrategy())
    again.strategy.restore(tmp_path / "run")
    assert_same(again.values(), expected)


def test_a_loop_over_steps_goes_back_with_its_checkpoint(tmp_path: Path) -> None:
    strategy, taken = ParameterServerStrategy(), []
    program = Program(strategy)
    for step in strategy.steps(4):
        program.step()
        taken.append(step)
        if step == 1:
            strategy.save(tmp_path / "run")
        if taken == [0, 1, 2]:
            strategy.roll_back(tmp_path / "run")
    assert taken == [0, 1, 2, 2, 3]
    assert program.seen.numpy() == 4
    other = ParameterServerStrategy()
    other.save(tmp_path / "nobody counted")
    with pytest.raises(FailedPreconditionError, match="counts its steps"):
        strategy.restore(tmp_path / "nobody counted")


def test_a_path_that_ends_in_safetensors_is_one_file(alone: Alone, tmp_path: Path) -> None:
    program = Program(alone())
    program.step()
    program.strategy.save(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").is_file()
    again = Program(alone())
    again.strategy.restore(tmp_path / "model.safetensors")
    assert_same(again.values(), program.values())


def test_beside_a_damaged_checkpoint_an_incremental_one_is_whole(
    alone: Alone, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = Program(alone())
    program.strategy.save(tmp_path, incremental=True)
    part = tmp_path / "checkpoint-1" / LOCAL_PART
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    program.strategy.save(tmp_path, incremental=True)
    assert "the next checkpoint will have all rows" in caplog.text
    latest = open_checkpoint(tmp_path)
    latest.verify()
    assert latest.base is None


def test_a_reader_follows_what_a_lone_program_saves(alone: Alone, tmp_path: Path) -> None:
    program = Program(alone())
    program.step()
    program.strategy.save(tmp_path / "run", incremental=True)
    with stratagem.Reader(tmp_path / "run") as reader:
        first, model = reader.version, reader.module(Model)
        program.step()
        program.strategy.save(tmp_path / "run", incremental=True)
        reader.wait_for(first + 1)
        users = torch.arange(20)
        program.model.eval()
        assert torch.equal(model(users), program.model(users))


def run_of(strategy: OneProcessStrategy, folder: Path, steps: int) -> list[float]:
    """Takes some steps of six, and ends the run after the last."""
    program, taken = Program(strategy), list[float]()
    run = strategy.resume(folder)
    if run.ended:
        return taken
    assert run.extra == ({"at": run.position} if run.position else {})
    for step in strategy.steps(6):
        taken.append(program.step())
        strategy.save(folder, extra={"at": step + 1})
        if len(taken) == steps:
            return taken
    run.finish({"at": 6})
    assert run.ended
    return taken


def test_a_run_is_resumed_alone_in_a_cluster_and_alone_again(
    alone: Alone, cluster: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert run_of(alone(), folder, 2) == [0.0, 8.0]
    with cluster.strategy() as strategy:
        assert run_of(strategy, folder, 2) == [16.0, 24.0]
    assert run_of(alone(), folder, 9) == [32.0, 40.0]
    assert run_of(alone(), folder, 9) == []


def test_a_folder_that_no_checkpoint_could_be_saved_to_is_refused_before_training(
    alone: Alone, tmp_path: Path
) -> None:
    program, begun = Program(alone()), list[str]()
    with pytest.raises(NotFoundError, match="unmounted' to save checkpoints in; make it first"):
        program.strategy.resume(tmp_path / "unmounted" / "run", lambda: begun.append("begun"))
    assert not begun
    assert program.strategy.resume(tmp_path / "run").position == 0


def test_what_resuming_alone_would_lose_or_take_twice_is_refused(
    alone: Alone, tmp_path: Path
) -> None:
    program = Program(alone())
    begun = list[str]()
    run = program.strategy.resume(tmp_path / "run", lambda: begun.append("begun"))
    assert (run.checkpoint, run.position, begun) == ("", 0, ["begun"])
    with pytest.raises(FailedPreconditionError, match="outside of a loop"):
        program.step()
    with pytest.raises(FailedPreconditionError, match=r"call resume\(\) once"):
        program.strategy.resume(tmp_path / "run")
    for _ in program.strategy.steps(1):
        program.step()
        with pytest.raises(FailedPreconditionError, match="within a loop"):
            run.finish()
    run.finish()
    with pytest.raises(FailedPreconditionError, match="an ended run takes no more steps"):
        list(program.strategy.steps(1))
    again = Program(alone())
    ended = again.strategy.resume(tmp_path / "run")
    assert (ended.ended, ended.position) == (True, 1)
    others = alone()
    others.save(tmp_path / "uncounted")
    with pytest.raises(FailedPreconditionError, match="does not say how many steps"):
        Program(alone()).strategy.resume(tmp_path / "uncounted")


def test_copies_of_two_replicas_go_on_as_one(tmp_path: Path) -> None:
    stratagem.config.set_logical_cpus(2)

    def trained(strategy: OneProcessStrategy, steps: int) -> torch.Tensor:
        with strategy.scope():
            model = nn.Linear(2, 1)
        optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))

        def step(rows: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()

        run = strategy.resume(tmp_path / "run")
        batches = iter(strategy.experimental_distribute_dataset([torch.ones(4, 2)] * 9))
        for number in strategy.steps(run.position + steps):
            strategy.run(step, args=(next(batches),))
            strategy.save(tmp_path / "run", keep=2, incremental=bool(number))
        return model.weight.detach().clone()

    first = trained(stratagem.MirroredStrategy(["CPU:0", "CPU:1"]), 3)
    assert torch.equal(trained(stratagem.OneDeviceStrategy("CPU:0"), 0), first)
    second = trained(stratagem.MirroredStrategy(["CPU:0", "CPU:1"]), 2)
    assert not torch.equal(second, first)
    assert torch.equal(trained(stratagem.CentralStorageStrategy(["CPU:0", "CPU:1"]), 0), second)


def test_strategies_of_one_device_load_no_protobuf_before_they_write_a_folder() -> None:
    program = (
        "import sys, torch, stratagem\n"
        "strategy = stratagem.OneDeviceStrategy('CPU:0')\n"
        "with strategy.scope(): model = torch.nn.Linear(1, 1)\n"
        "strategy.run(lambda: model(torch.ones(1, 1)))\n"
        "assert not [one for one in sys.modules if one.startswith('google.protobuf')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
