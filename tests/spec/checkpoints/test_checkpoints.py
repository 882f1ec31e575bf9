"""What a strategy holds, saved under one strategy and restored under another."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import stratagem
from stratagem import (
    ParameterServerStrategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from tests.client.clusters import running
from tests.client.two_replicas import TwoReplicas
from tests.spec.checkpoints.checkpoints import STRATEGIES, copies_of, created

SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
FIRST, NONE = VariableAggregation.ONLY_FIRST_REPLICA, VariableAggregation.NONE
ON_READ = VariableSynchronization.ON_READ

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.mark.parametrize("source", STRATEGIES)
@pytest.mark.parametrize("target", STRATEGIES)
@pytest.mark.spec("VCK-1", "VCK-6", "VCK-7")
def test_any_variable_takes_the_value_of_any_other(
    source: str, target: str, tmp_path: Path
) -> None:
    """One tensor under the container's name, to every copy."""
    saver, restorer = STRATEGIES[source](), STRATEGIES[target]()
    kept = created(saver, 5.0)
    saver.save(tmp_path / "model.safetensors")
    saved = load_file(tmp_path / "model.safetensors")
    assert {name: value.item() for name, value in saved.items()} == {"v": 5.0}
    variable = created(restorer)
    restorer.restore(tmp_path / "model.safetensors").assert_consumed()
    assert set(copies_of(variable)) == {5.0}
    kept.assign(7.0)
    assert set(copies_of(variable)) == {5.0}


@pytest.mark.spec("VCK-1")
def test_the_first_copy_is_saved_wherever_the_thread_is() -> None:
    strategy = STRATEGIES["mirrored"]()
    variable = created(strategy, 1.0)
    variable.values[1].value().detach().fill_(2.0)
    with stratagem.device("CPU:1"):
        assert strategy.state_dict()["v"] == 1.0


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


@pytest.mark.spec("VCK-2")
@pytest.mark.parametrize("is_set", [True, False])
def test_a_flag_that_some_replica_has_set_is_restored(is_set: bool) -> None:
    strategy = STRATEGIES["mirrored"]()
    variable = created(strategy, False, ON_READ, SUM)
    strategy.load_state_dict({"v": torch.tensor(is_set)})
    assert variable.read_value().dtype == torch.bool
    assert strategy.state_dict()["v"].item() is is_set


def test_a_value_that_does_not_fit_what_is_made_later_is_refused() -> None:
    strategy = STRATEGIES["mirrored"]()
    strategy.load_state_dict({"v": torch.ones(2)})
    with pytest.raises(ValueError, match=r"'v' with shape \(2,\)"):
        created(strategy)


def test_a_state_that_lacks_a_variable_changes_nothing() -> None:
    strategy = STRATEGIES["mirrored"]()
    variable = created(strategy, 1.0)
    with pytest.raises(stratagem.NotFoundError, match="no 'v'; it has 'a'"):
        strategy.load_state_dict({"a": torch.tensor(2.0)})
    assert copies_of(variable) == [1.0, 1.0]
    status = strategy.load_state_dict({"a": torch.tensor(2.0)}, strict=False)
    assert (status.unused, status.missing) == (["a"], ["v"])
    assert copies_of(variable) == [1.0, 1.0]


@pytest.mark.spec("CKP-2")
def test_a_status_tells_what_was_found() -> None:
    """Each check returns the status, so that it can follow the call that restores."""
    strategy = STRATEGIES["mirrored"]()
    variable = created(strategy)
    whole, one = {"v": torch.tensor(2.0), "a": torch.tensor(3.0)}, {"v": torch.tensor(2.0)}
    status = strategy.load_state_dict(one)
    assert status.assert_consumed() is status
    matched = strategy.load_state_dict(whole).assert_existing_objects_matched()
    with pytest.raises(stratagem.FailedPreconditionError, match="'a', for which this program"):
        matched.assert_consumed()
    partial = strategy.load_state_dict({}, strict=False).expect_partial()
    for check in (partial.assert_existing_objects_matched, partial.assert_consumed):
        with pytest.raises(stratagem.FailedPreconditionError, match="no 'v', which were left"):
            check()
    assert copies_of(variable) == [2.0, 2.0]


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


def test_what_servers_hold_is_not_gathered_or_copied_here() -> None:
    with running(num_servers=1) as cluster, cluster.strategy() as strategy:
        variable = created(strategy, 1.0)
        with pytest.raises(NotImplementedError, match="does not gather here all"):
            strategy.state_dict()
        with pytest.raises(NotImplementedError, match="does not gather here all"):
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
