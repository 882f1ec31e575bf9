"""The public object of every strategy: who it is, and what it hands on."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stratagem
from stratagem import Variable
from stratagem._core import device_names
from tests.client.batches import batches, steps
from tests.client.two_replicas import HOME, TwoReplicas, _Extended
from tests.deprecations import warns_to_use

pytestmark = pytest.mark.usefixtures("four_cpus")

STRATEGIES: dict[str, Callable[[], stratagem.Strategy]] = {
    "default": stratagem.get_strategy,
    "one device": lambda: stratagem.OneDeviceStrategy("CPU:1"),
    "mirrored": lambda: stratagem.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]),
    "central": lambda: stratagem.CentralStorageStrategy(["CPU:0", "CPU:1"]),
    "written by a user": TwoReplicas,
}


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> stratagem.Strategy:
    return STRATEGIES[request.param]()


@pytest.mark.spec("STR-1")
def test_a_strategy_is_made_of_what_differs_from_others() -> None:
    strategy = TwoReplicas()
    extended = _Extended(strategy, 2)
    assert stratagem.Strategy(extended).extended is extended


@pytest.mark.spec("STR-4")
def test_the_resolver_is_that_of_extended() -> None:
    strategy = TwoReplicas()
    strategy.extended._cluster_resolver = "resolver"  # type: ignore[attr-defined]
    assert strategy.cluster_resolver == "resolver"


@pytest.mark.spec("STR-5")
def test_a_deep_copy_has_an_extended_of_its_own() -> None:
    original = STRATEGIES["mirrored"]()
    twin = copy.deepcopy(original)
    assert twin.extended is not original.extended
    assert twin.num_replicas_in_sync == original.num_replicas_in_sync
    with twin.scope(), pytest.raises(RuntimeError, match="Mixing different"):
        original.run(lambda: None)


@pytest.mark.spec("STR-6")
def test_a_shallow_copy_is_refused(strategy: stratagem.Strategy) -> None:
    with pytest.raises(RuntimeError, match="Must only deepcopy"):
        copy.copy(strategy)


def test_a_pickled_strategy_is_refused(strategy: stratagem.Strategy) -> None:
    with pytest.raises(stratagem.InvalidTypeError, match=r"cannot be pickled.* in each process"):
        pickle.dumps(strategy)


@pytest.mark.spec("STR-11")
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "default"])
def test_variables_made_in_a_scope_are_the_strategys(name: str) -> None:
    strategy = STRATEGIES[name]()
    with strategy.scope():
        variable = Variable(1.0)
    assert strategy.extended.variable_created_in_scope(variable)
    assert not strategy.extended.variable_created_in_scope(Variable(1.0))


@pytest.mark.spec("STR-11")
def test_variables_know_where_another_strategy_took_over() -> None:
    with (
        stratagem.get_strategy().scope(),
        STRATEGIES["mirrored"]().scope(),
        pytest.raises(RuntimeError, match="Mixing different"),
    ):
        Variable(1.0)


@pytest.mark.spec("STR-12")
def test_a_scope_enters_the_default_device_where_there_is_one() -> None:
    strategy = TwoReplicas()
    with strategy.scope():
        assert device_names.current() == ""
    strategy.extended._default_device = HOME
    with strategy.scope():
        assert device_names.current() == HOME


@pytest.mark.spec("STR-24")
@pytest.mark.parametrize("name", ["one device", "central"])
def test_every_strategy_has_the_same_methods(name: str) -> None:
    strategy = STRATEGIES[name]()
    replicas = strategy.num_replicas_in_sync
    ones: Any = strategy.run(lambda: torch.ones(2))
    assert len(strategy.experimental_local_results(ones)) == replicas
    assert strategy.reduce("sum", ones, axis=0) == 2 * replicas
    dataset = strategy.experimental_distribute_dataset(batches(2, 2))
    assert steps(dataset) == [[[0, 1]] if replicas == 1 else [[0], [1]]]


@pytest.mark.spec("STR-7")
def test_there_is_nothing_to_initialize(strategy: stratagem.Strategy) -> None:
    with warns_to_use("nothing"):
        assert strategy.experimental_initialize() == []
    with warns_to_use("nothing"):
        assert strategy.experimental_finalize() == []


@pytest.mark.spec("STR-8")
def test_colocation_is_passed_on(strategy: stratagem.Strategy) -> None:
    with strategy.scope():
        variable = Variable(1.0)
        with warns_to_use("extended.colocate_vars_with"):
            scope = strategy.colocate_vars_with(variable)
        with scope:
            other = Variable(2.0)
    assert other.device_name == variable.device_name


@pytest.mark.spec("STR-21")
def test_an_older_name_runs_too(strategy: stratagem.Strategy) -> None:
    with warns_to_use("run"):
        result = strategy.experimental_run_v2(torch.ones, args=[2])
    parts = strategy.experimental_local_results(result)
    assert [part.tolist() for part in parts] == [[1.0, 1.0]] * len(parts)
    assert len(parts) == strategy.num_replicas_in_sync
