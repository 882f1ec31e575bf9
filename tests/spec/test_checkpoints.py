"""What a strategy holds, saved under one strategy and restored under another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import stratagem
from stratagem import (
    CentralStorageStrategy,
    DistributedOptimizer,
    MirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    PerReplica,
    Strategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from tests.client.clusters import running
from tests.client.two_replicas import TwoReplicas

SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
FIRST, NONE = VariableAggregation.ONLY_FIRST_REPLICA, VariableAggregation.NONE
ON_READ = VariableSynchronization.ON_READ
AUTO = VariableSynchronization.AUTO

pytestmark = pytest.mark.usefixtures("four_cpus")

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "mirrored": lambda: MirroredStrategy(["CPU:0", "CPU:1"]),
    "central": lambda: CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2"),
    "one": lambda: OneDeviceStrategy("CPU:3"),
}


def created(
    strategy: Strategy,
    value: object = 0.0,
    synchronization: VariableSynchronization = AUTO,
    aggregation: VariableAggregation = NONE,
) -> Variable:
    with strategy.scope():
        return Variable(
            value,
            name="v",
            synchronization=synchronization,
            aggregation=aggregation,
        )


def copies_of(variable: Variable) -> list[float]:
    return [float(copy.numpy()) for copy in variable.values]


@pytest.mark.parametrize("source", STRATEGIES)
@pytest.mark.parametrize("target", STRATEGIES)
@pytest.mark.spec("VCK-1", "VCK-6", "VCK-7")
def test_any_variable_takes_the_value_of_any_other(
    source: str, target: str, tmp_path: Path
) -> None:
    """One tensor under the container's name, to every copy."""
    saver, restorer = STRATEGIES[source](), STRATEGIES[target]()
    kept = created(saver, 5.0)
    saver.save(tmp_path / "model")
    saved = load_file(tmp_path / "model")
    assert {name: value.item() for name, value in saved.items()} == {"v": 5.0}
    variable = created(restorer)
    restorer.restore(tmp_path / "model").assert_consumed()
    assert set(copies_of(variable)) == {5.0}
    kept.assign(7.0)
    assert set(copies_of(variable)) == {5.0}


@pytest.mark.parametrize("target", STRATEGIES)
@pytest.mark.spec("VCK-7")
def test_a_file_without_a_strategy_is_as_good(target: str, tmp_path: Path) -> None:
    """And a plain variable takes the value out of the file."""
    plain, strategy = Variable(3.0, name="v"), STRATEGIES[target]()
    save_file({plain.name: plain.read_value().detach()}, tmp_path / "plain")
    variable = created(strategy)
    strategy.restore(tmp_path / "plain")
    assert set(copies_of(variable)) == {3.0}
    variable.assign(4.0)
    strategy.save(tmp_path / "ours")
    plain.assign(load_file(tmp_path / "ours")["v"])
    assert plain.numpy() == 4.0


@pytest.mark.spec("VCK-1")
def test_the_first_copy_is_saved_wherever_the_thread_is() -> None:
    strategy = STRATEGIES["mirrored"]()
    variable = created(strategy, 1.0)
    variable.values[1].assign(2.0)
    with stratagem.device("CPU:1"):
        assert strategy.state_dict()["v"] == 1.0


@pytest.mark.parametrize(
    ("aggregation", "value", "restored"),
    [
        pytest.param(SUM, 5.0, [2.5, 2.5], marks=pytest.mark.spec("VCK-2")),
        pytest.param(MEAN, 2.5, [2.5, 2.5], marks=pytest.mark.spec("VCK-3")),
        pytest.param(FIRST, 1.0, [1.0, 1.0], marks=pytest.mark.spec("VCK-4")),
    ],
)
def test_copies_are_saved_combined(
    aggregation: VariableAggregation, value: float, restored: list[float]
) -> None:
    """A SUM of `[1, 4]` is saved as 5 and restored as `[2.5, 2.5]`."""
    strategy = STRATEGIES["mirrored"]()
    variable = created(strategy, 0.0, ON_READ, aggregation)
    strategy.run(variable.assign, (PerReplica([1.0, 4.0]),))
    saved = strategy.state_dict()
    assert saved["v"].item() == value
    strategy.load_state_dict(saved)
    assert copies_of(variable) == restored


@pytest.mark.spec("VCK-5")
def test_without_aggregation_there_is_nothing_to_save() -> None:
    """Restoring gives every copy the value."""
    strategy = STRATEGIES["mirrored"]()
    variable = created(strategy, 0.0, ON_READ)
    with pytest.raises(ValueError, match="Could not convert from"):
        strategy.state_dict()
    strategy.load_state_dict({"v": torch.tensor(3.0)})
    assert copies_of(variable) == [3.0, 3.0]


@pytest.mark.parametrize("target", STRATEGIES)
@pytest.mark.spec("VCK-8", "VAR-2")
def test_a_variable_made_later_starts_with_its_value(target: str) -> None:
    """On every copy, made in scope or in a replica; others start as asked to."""
    strategy = STRATEGIES[target]()
    state = {"v": torch.tensor(4.0), "w": torch.tensor(5.0), "x": torch.tensor(6.0)}
    restored = strategy.load_state_dict(state)
    assert restored.unused == ["v", "w", "x"]
    with strategy.scope():
        variable, other = Variable(1.0, name="v"), Variable(1.0)
    made = strategy.run(lambda: Variable(1.0, name="w"))
    assert set(copies_of(variable)) == {4.0}
    assert set(copies_of(made)) == {5.0}
    assert set(copies_of(other)) == {1.0}
    with pytest.raises(RuntimeError, match="'x', for which this program"):
        restored.assert_consumed()


@pytest.mark.spec("VCK-2", "VCK-8")
def test_a_sum_made_later_is_spread_over_its_copies() -> None:
    strategy = STRATEGIES["mirrored"]()
    strategy.load_state_dict({"v": torch.tensor(6.0)})
    variable = created(strategy, 0.0, ON_READ, SUM)
    assert copies_of(variable) == [3.0, 3.0]


def test_a_value_that_does_not_fit_what_is_made_later_is_refused() -> None:
    strategy = STRATEGIES["mirrored"]()
    strategy.load_state_dict({"v": torch.ones(2)})
    with pytest.raises(ValueError, match=r"'v' with shape \(2,\)"):
        created(strategy)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))


class Training:
    """A model, a variable and Adam under one strategy."""

    def __init__(self, strategy: Strategy) -> None:
        torch.manual_seed(0)
        self.strategy = strategy
        with strategy.scope():
            self.model = network()
            self.rounds = Variable(0, name="rounds")
        adam = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.optimizer = DistributedOptimizer(adam)

    def step(self, rows: torch.Tensor) -> None:
        def fn(mine: torch.Tensor) -> None:
            self.optimizer.zero_grad()
            self.model(mine).square().mean().backward()
            self.optimizer.step()

        halves = rows.chunk(self.strategy.num_replicas_in_sync)
        self.strategy.run(fn, (PerReplica(halves),))
        self.rounds.assign_add(1)

    def values(self) -> dict[str, Any]:
        return {name: v.tolist() for name, v in self.strategy.state_dict().items()}


@pytest.mark.parametrize("target", STRATEGIES)
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.spec("VCK-1", "VCK-7", "VCK-8")
def test_training_goes_on_where_it_was_saved(
    target: str, later: bool, tmp_path: Path
) -> None:
    """Parameters, buffers, variables and slots, made before or after it."""
    rows = torch.arange(16.0).reshape(8, 2)
    whole = Training(STRATEGIES[target]())
    whole.step(rows)
    whole.strategy.save(tmp_path / "half")
    half = whole.values()
    assert {"0.weight", "1.running_mean", "rounds", "0.weight/Adam/exp_avg"} < {*half}
    whole.step(rows)
    strategy = STRATEGIES[target]()
    if later:
        strategy.restore(tmp_path / "half")
    resumed = Training(strategy)
    if not later:
        resumed.step(-rows)
        strategy.restore(tmp_path / "half").assert_consumed()
    assert resumed.values() == half
    assert resumed.model.get_parameter("0.weight").tolist() == half["0.weight"]
    resumed.step(rows)
    assert resumed.values() == whole.values()


@pytest.mark.spec("VCK-7")
def test_a_model_is_saved_under_the_names_of_its_own_state(tmp_path: Path) -> None:
    """So that it loads where there is no strategy."""
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        model = network()
    strategy.save(tmp_path / "model")
    plain = network()
    plain.load_state_dict(load_file(tmp_path / "model"))
    rows = torch.ones(3, 2)
    assert torch.equal(plain(rows), model(rows))


def test_restoring_a_first_state_forgets_that_of_optimizers() -> None:
    training = Training(STRATEGIES["mirrored"]())
    fresh = training.strategy.state_dict()
    training.step(torch.ones(4, 2))
    training.strategy.load_state_dict(fresh)
    assert set(training.strategy.state_dict()) == set(fresh)
    assert training.optimizer.state_dict()["state"] == {}


def test_equal_names_are_told_apart() -> None:
    strategy = STRATEGIES["one"]()
    with strategy.scope():
        kept = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
        with strategy.scope(name="ignored when nested"):
            pass
    with strategy.scope(name="head"):
        head = nn.BatchNorm1d(1)
    kept[1].running_mean.fill_(2.0)  # type: ignore[union-attr]
    head.running_mean.fill_(3.0)  # type: ignore[union-attr]
    state = strategy.state_dict()
    means = {name: v.item() for name, v in state.items() if "running_mean" in name}
    assert means == {
        "running_mean": 0.0,
        "running_mean_1": 2.0,
        "head/running_mean": 3.0,
    }


def test_what_the_user_wrote_into_a_parameter_is_saved() -> None:
    strategy = STRATEGIES["central"]()
    with strategy.scope():
        model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(8.0)
    assert strategy.state_dict()["weight"] == 8.0
    with torch.no_grad():
        model.weight.fill_(9.0)
    strategy.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.zeros(1)})
    assert model.weight == 1.0
    assert strategy.state_dict()["weight"] == 1.0


def test_a_state_that_lacks_a_variable_changes_nothing() -> None:
    strategy = STRATEGIES["mirrored"]()
    variable = created(strategy, 1.0)
    with pytest.raises(stratagem.NotFoundError, match="no 'v'; it has 'a'"):
        strategy.load_state_dict({"a": torch.tensor(2.0)})
    assert copies_of(variable) == [1.0, 1.0]
    unused = strategy.load_state_dict({"a": torch.tensor(2.0)}, strict=False).unused
    assert unused == ["a"]
    assert copies_of(variable) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2), r"shape \(2,\) and dtype torch\.float32, but here"),
        (torch.tensor(1), "dtype torch.int64, but here"),
        (1.0, "has a float for 'v'"),
    ],
)
def test_a_value_that_does_not_fit_changes_nothing(value: Any, message: str) -> None:
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        first = Variable(1.0, name="a")
    variable = created(strategy, 1.0)
    with pytest.raises(stratagem.StratagemError, match=message):
        strategy.load_state_dict({"a": torch.tensor(5.0), "v": value})
    assert copies_of(first) == copies_of(variable) == [1.0, 1.0]


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    strategy = STRATEGIES["one"]()
    with pytest.raises(stratagem.NotFoundError, match="there is no checkpoint"):
        strategy.restore(tmp_path / "none")
    with pytest.raises(stratagem.NotFoundError, match="there is no checkpoint"):
        strategy.restore(tmp_path)
    with pytest.raises(stratagem.NotFoundError, match="there is no folder"):
        strategy.save(tmp_path / "none" / "model")
    with pytest.raises(stratagem.InvalidArgumentError, match="is a folder"):
        strategy.save(tmp_path)
    (tmp_path / "damaged").write_bytes(b"nothing of the kind")
    with pytest.raises(stratagem.DataLossError, match="damaged"):
        strategy.restore(tmp_path / "damaged")


@pytest.mark.parametrize("target", STRATEGIES)
@pytest.mark.spec("VCK-9")
def test_a_file_has_the_values_as_of_the_call(target: str, tmp_path: Path) -> None:
    """Saves that are not waited for; the last one stays."""
    strategy = STRATEGIES[target]()
    variable = created(strategy, 0.0)
    pending = []
    for number in range(5):
        variable.assign(float(number))
        pending.append(strategy.save(tmp_path / "model", wait=False))
    variable.assign(9.0)
    for written in pending:
        assert written.result(timeout=60) is None
    assert load_file(tmp_path / "model")["v"] == 4.0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.spec("VCK-9")
def test_a_save_that_is_not_waited_for_tells_its_error(tmp_path: Path) -> None:
    strategy = STRATEGIES["one"]()
    kept = created(strategy, torch.zeros(1, dtype=torch.complex128))
    written = strategy.save(tmp_path / "model", wait=False)
    with pytest.raises(stratagem.InvalidArgumentError, match=r"torch\.complex128"):
        written.result(timeout=60)
    with pytest.raises(stratagem.InvalidArgumentError, match=r"torch\.complex128"):
        strategy.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    assert kept.name in strategy.state_dict()


def test_a_replica_cannot_save_or_restore() -> None:
    strategy = STRATEGIES["mirrored"]()
    for method in (strategy.state_dict, lambda: strategy.load_state_dict({})):
        with pytest.raises(stratagem.ContextError, match="requires being in cross"):
            strategy.run(method)
    with (
        pytest.raises(stratagem.ContextError, match="Mixing different"),
        STRATEGIES["one"]().scope(),
    ):
        strategy.state_dict()


@pytest.mark.parametrize("which", ["default", "of a user"])
def test_strategies_that_keep_no_variables_say_so(which: str) -> None:
    strategy = stratagem.get_strategy() if which == "default" else TwoReplicas()
    for method in (strategy.state_dict, lambda: strategy.load_state_dict({})):
        with pytest.raises(NotImplementedError, match=r"module\.state_dict\(\)"):
            method()


def test_what_servers_hold_is_not_saved_or_copied_here() -> None:
    with running(num_servers=1) as cluster, cluster.strategy() as strategy:
        variable = created(strategy, 1.0)
        with pytest.raises(NotImplementedError, match="ParameterServerStrategy has no"):
            strategy.state_dict()
        with pytest.raises(NotImplementedError, match="ParameterServerStrategy has no"):
            strategy.load_state_dict({})
        with pytest.raises(NotImplementedError, match="'v' cannot be deep-copied"):
            copy.deepcopy(variable)


def test_a_parameter_server_strategy_without_a_cluster_saves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = ParameterServerStrategy()
    variable = created(strategy, 2.0)
    assert strategy.state_dict() == {"v": 2.0}
    strategy.load_state_dict({"v": torch.tensor(3.0)})
    assert variable.numpy() == 3.0
