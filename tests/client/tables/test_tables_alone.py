"""Tables of keys without a cluster: their rows are those that a server would have."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import stratagem
from stratagem import (
    ContextError,
    DistributedOptimizer,
    FailedPreconditionError,
    InvalidArgumentError,
    LocalSteps,
    NotFoundError,
    ParameterServerStrategy,
    UnimplementedError,
)
from stratagem.nn import DynamicEmbedding
from stratagem_storage.checkpoint.folder import LOCAL_PART
from tests.client.clusters import Cluster, running
from tests.full import by_values
from tests.waiting import eventually

KEYS = torch.tensor([2**62, -5, 0, -(2**63), 2**63 - 1, 7])


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(1) as found:
        yield found


class Model(nn.Module):
    def __init__(self, **limits: Any) -> None:
        super().__init__()
        self.items = DynamicEmbedding(4, **limits)
        self.last = nn.Linear(4, 1)

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        answers: torch.Tensor = self.last(self.items(keys))
        return answers


class Program:
    """A program that trains a table and a layer, alone or on servers."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        make: Callable[[Any], torch.optim.Optimizer] | None = None,
        **limits: Any,
    ) -> None:
        self.strategy = strategy
        torch.manual_seed(1)
        with strategy.scope():
            self.model = Model(**limits)
        made = (make or (lambda all_: torch.optim.Adam(all_, lr=0.1)))(self.model.parameters())
        self.optimizer = DistributedOptimizer(made)

    def train(self, steps: int, first: int = 0) -> None:
        def step(keys: torch.Tensor) -> None:
            self.optimizer.zero_grad()
            (self.model(keys) - 1).square().sum().backward()
            self.optimizer.step()

        for number in range(first, first + steps):
            generator = torch.Generator().manual_seed(number)
            keys = torch.randint(0, 40 + 4 * number, (24,), generator=generator)
            self.strategy.run(step, args=(torch.cat([keys - 20, KEYS[: number % 6]]),))

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        pages = [torch.empty(0, dtype=torch.int64), *self.model.items.keys()]
        keys = torch.cat(pages).sort().values
        with torch.no_grad():
            return keys, self.model.items(keys)

    def values(self) -> list[torch.Tensor]:
        dense = [one.detach().clone() for one in self.model.last.parameters()]
        with torch.no_grad():
            return [*self.rows(), self.model.items(torch.arange(-100, 200)), *dense]


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine, theirs)


LIMITS: dict[str, dict[str, Any]] = {
    "none": {},
    "admission": {"admit_after": 3},
    "idle": {"max_idle": 3},
    "oldest": {"max_bytes": 6_000},
    "rarest": {"max_bytes": 8_000, "evict": "rarest", "admit_after": 2},
    "bfloat16": {"row_dtype": torch.bfloat16},
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda all_: torch.optim.SGD(all_, lr=0.002),
    "Adagrad": lambda all_: torch.optim.Adagrad(all_, lr=0.1),
    "Adam": lambda all_: torch.optim.Adam(all_, lr=0.1, amsgrad=True),
    "AdamW": lambda all_: torch.optim.AdamW(all_, lr=0.1),
    "RMSprop": lambda all_: torch.optim.RMSprop(all_, lr=0.01),
    "RowWiseAdagrad": lambda all_: stratagem.optim.RowWiseAdagrad(all_, lr=0.1),
}


@by_values("limits,optimizer", [*LIMITS], [*OPTIMIZERS])
def test_rows_are_those_of_a_server_to_the_bit(
    cluster: Cluster, limits: str, optimizer: str
) -> None:
    alone = Program(ParameterServerStrategy(), OPTIMIZERS[optimizer], **LIMITS[limits])
    alone.train(12)
    with cluster.strategy() as strategy:
        there = Program(strategy, OPTIMIZERS[optimizer], **LIMITS[limits])
        there.train(12)
        assert_same(alone.values(), there.values())


@pytest.mark.parametrize("on_nonfinite", [None, "reject"])
def test_limits_of_gradients_hold_for_rows_too(cluster: Cluster, on_nonfinite: str | None) -> None:
    def trained(strategy: ParameterServerStrategy) -> list[torch.Tensor]:
        program = Program(strategy)
        adagrad = torch.optim.Adagrad(program.model.parameters(), lr=0.1)
        program.optimizer = DistributedOptimizer(
            adagrad, clip_norm=0.5, clip_value=0.3, on_nonfinite=on_nonfinite
        )
        program.train(4)
        return program.values()

    with cluster.strategy() as strategy:
        assert_same(trained(ParameterServerStrategy()), trained(strategy))


def test_a_folder_of_checkpoints_goes_on_as_a_program_that_never_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    limits: dict[str, Any] = {"admit_after": 2, "max_bytes": 9_000}
    first = Program(ParameterServerStrategy(), **limits)
    for number in range(6):
        first.train(1, number)
        incremental = number % 2 == 1
        first.strategy.save(folder, keep=2, extra={"step": number}, incremental=incremental)
    saved = first.values()
    first.train(3, 6)

    second = Program(ParameterServerStrategy(), **limits)
    second.train(2, 50)
    status = second.strategy.restore(folder).assert_consumed()
    assert status.extra == {"step": 5}
    assert_same(second.values(), saved)
    second.train(3, 6)
    assert_same(second.values(), first.values())


def test_an_incremental_checkpoint_has_the_rows_that_differ(tmp_path: Path) -> None:
    folder, program = tmp_path / "run", Program(ParameterServerStrategy())

    def step(keys: torch.Tensor) -> None:
        program.optimizer.zero_grad()
        program.model.items(keys).sum().backward()
        program.optimizer.step()

    program.strategy.run(step, args=(torch.arange(5000),))
    program.strategy.save(folder, keep=9)
    program.strategy.run(step, args=(torch.arange(40),))
    program.strategy.save(folder, keep=9, incremental=True)
    sizes = [(folder / f"checkpoint-{n}" / LOCAL_PART).stat().st_size for n in (1, 2)]
    assert sizes[1] < 0.1 * sizes[0]
    other = Program(ParameterServerStrategy())
    other.strategy.restore(folder)
    assert_same(other.values(), program.values())


def test_a_save_that_is_written_later_has_the_moment_of_its_call(tmp_path: Path) -> None:
    program = Program(ParameterServerStrategy())
    program.train(3)
    expected = program.values()
    written = [program.strategy.save(tmp_path / "run", wait=False) for _ in range(2)]
    program.train(6, 3)
    for one in written:
        one.result()
    other = Program(ParameterServerStrategy())
    other.strategy.restore(tmp_path / "run")
    assert_same(other.values(), expected)


def test_resume_begins_and_goes_on_and_ends(tmp_path: Path) -> None:
    def trained(stop: int) -> tuple[int, list[torch.Tensor]]:
        program = Program(ParameterServerStrategy())
        run = program.strategy.resume(tmp_path / "run")
        for number in program.strategy.steps(6):
            program.train(1, number)
            program.strategy.save(tmp_path / "run", keep=2)
            if number + 1 == stop:
                break
        else:
            run.finish()
        return run.position, program.values()

    assert [trained(stop)[0] for stop in (2, 5, 9)] == [0, 2, 5]
    position, values = trained(9)
    whole = Program(ParameterServerStrategy())
    whole.train(6)
    assert position == 6
    assert_same(values, whole.values())


@pytest.mark.parametrize("servers", [1, 3])
def test_a_checkpoint_goes_on_in_a_cluster_and_the_other_way(tmp_path: Path, servers: int) -> None:
    limits: dict[str, Any] = {"admit_after": 2}
    alone = Program(ParameterServerStrategy(), **limits)
    alone.train(4)
    alone.strategy.save(tmp_path / "alone")
    alone.train(3, 4)
    with running(servers) as cluster, cluster.strategy() as strategy:
        there = Program(strategy, **limits)
        strategy.restore(tmp_path / "alone").assert_consumed()
        there.train(3, 4)
        assert_same(there.values(), alone.values())
        strategy.save(tmp_path / "there")
    back = Program(ParameterServerStrategy(), **limits)
    back.strategy.restore(tmp_path / "there").assert_consumed()
    assert_same(back.values(), alone.values())
    for program in (alone, back):
        program.train(3, 7)
    assert_same(back.values(), alone.values())


def test_what_is_made_after_a_checkpoint_was_restored_begins_with_it(tmp_path: Path) -> None:
    first = Program(ParameterServerStrategy())
    first.train(3)
    first.strategy.save(tmp_path / "run")
    first.train(2, 3)

    strategy = ParameterServerStrategy()
    status = strategy.restore(tmp_path / "run")
    assert "items.weight" in status.unused
    assert "items.weight/Adam/exp_avg" in status.unused
    second = Program(strategy)
    status.assert_consumed()
    second.train(2, 3)
    assert_same(second.values(), first.values())


def test_a_model_goes_home_with_its_keys_and_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    first = Program(ParameterServerStrategy())
    first.train(5)
    with pytest.raises(InvalidArgumentError, match="stored_rows=True"):
        first.strategy.export(first.model, path)
    first.strategy.export(first.model, path, stored_rows=True)
    state, (keys, rows) = load_file(path), first.rows()
    assert torch.equal(state["items.weight[keys]"], keys)
    assert torch.equal(state["items.weight"], rows)
    second = Program(ParameterServerStrategy())
    second.strategy.restore(path).assert_consumed()
    assert_same(second.values(), first.values())


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    first = Program(ParameterServerStrategy())
    first.train(2)
    first.strategy.save(tmp_path / "run")

    class Wider(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.last = DynamicEmbedding(5), nn.Linear(4, 1)

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = DynamicEmbedding(4), nn.Linear(4, 1)

    for kind, error in ((Wider, InvalidArgumentError), (Other, NotFoundError)):
        strategy = ParameterServerStrategy()
        with strategy.scope():
            model = kind()
        before = model.last.weight.detach().clone()
        with pytest.raises(error, match=r"items\.weight|words\.weight"):
            strategy.restore(tmp_path / "run")
        assert torch.equal(model.last.weight, before)
    status = strategy.restore(tmp_path / "run", strict=False)
    assert status.missing == ["words.weight"]
    assert torch.equal(model.last.weight, first.model.last.weight)


def test_what_has_no_place_for_keys_says_what_has(tmp_path: Path) -> None:
    program = Program(ParameterServerStrategy())
    strategy, model = program.strategy, program.model
    program.train(1)
    before = program.values()
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (strategy.state_dict, UnimplementedError, r"strategy\.save\(FOLDER\)"),
        (lambda: strategy.save(tmp_path / "one.safetensors"), UnimplementedError, "FOLDER"),
        (lambda: strategy.load_state_dict({}, strict=True), NotFoundError, "items.weight"),
        (model.state_dict, InvalidArgumentError, "stored_rows=True"),
        (program.optimizer.state_dict, UnimplementedError, "stored by rows"),
        (
            torch.optim.SGD(model.parameters(), lr=0.1).step,
            FailedPreconditionError,
            "wrap the optimizer",
        ),
        (
            lambda: LocalSteps(torch.optim.SGD(model.parameters(), lr=0.1), every=2),
            InvalidArgumentError,
            "is a table",
        ),
    ]
    for call, error, words in refused:
        with pytest.raises(error, match=words):
            call()
    assert_same(program.values(), before)


def test_other_strategies_refuse_to_make_one() -> None:
    for strategy in (stratagem.get_strategy(), stratagem.OneDeviceStrategy("CPU:0")):
        with strategy.scope(), pytest.raises(ContextError, match="ParameterServerStrategy"):
            DynamicEmbedding(4)
    with pytest.raises(ContextError, match="with a cluster or without"):
        DynamicEmbedding(4)


def test_a_step_that_is_refused_changes_nothing() -> None:
    program = Program(ParameterServerStrategy(), max_bytes=4_000)
    program.train(1)
    before = program.values()
    with pytest.raises(InvalidArgumentError, match=r"items\.weight"):
        program.strategy.run(
            lambda: (
                program.model(torch.arange(5_000)).sum().backward(),
                program.optimizer.step(),
            )
        )
    assert_same(program.values(), before)


def test_idle_rows_are_evicted_with_time() -> None:
    program = Program(ParameterServerStrategy(), max_idle_seconds=0.2)
    program.train(1)
    assert len(program.rows()[0])
    eventually(lambda: not len(program.rows()[0]))


def test_rows_of_a_table_that_is_gone_are_gone() -> None:
    strategy = ParameterServerStrategy()
    program = Program(strategy)
    program.train(2)
    store = strategy.extended._hosting.tables._rows  # type: ignore[union-attr]
    assert len({one.name for one in store.variables()}) > 1
    names = strategy.forget(program.model, program.optimizer)
    assert "items.weight" in names
    again = Program(strategy)
    assert not len(again.rows()[0])
    again.train(2)
    fresh = Program(ParameterServerStrategy())
    fresh.train(2)
    assert_same(again.values(), fresh.values())
    del program, again
    gc.collect()
    Program(strategy)
    assert [one.name for one in store.variables()] == ["items.weight"]


def test_replicas_of_one_process_add_up_gradients_of_keys() -> None:
    stratagem.config.set_logical_cpus(2)
    strategy = ParameterServerStrategy(num_replicas_per_worker=2)
    program = Program(strategy, lambda all_: torch.optim.SGD(all_, lr=1.0))
    before = program.model.items(KEYS).detach()

    def step(keys: torch.Tensor) -> None:
        program.optimizer.zero_grad()
        program.model.items(keys).sum().backward()
        program.optimizer.step()

    batches = strategy.experimental_distribute_dataset([KEYS[[0, 1, 2, 1, 2, 3]]])
    for batch in batches:
        strategy.run(step, args=(batch,))
    change = (before - program.model.items(KEYS)).detach()[:, 0]
    torch.testing.assert_close(change, torch.tensor([0.5, 1.0, 1.0, 0.5, 0.0, 0.0]))


def test_programs_without_such_a_table_load_nothing_of_servers() -> None:
    program = (
        "import sys, torch, stratagem\n"
        "strategy = stratagem.ParameterServerStrategy()\n"
        "with strategy.scope(): model = torch.nn.Linear(1, 1)\n"
        "strategy.run(lambda: model(torch.ones(1, 1)))\n"
        "assert not [one for one in sys.modules if one.startswith('stratagem_psserver')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
