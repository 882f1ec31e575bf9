"""Functions and values that cannot be sent to workers, or not be loaded there."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from functools import partial
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from stratagem import (
    ClosureInputError,
    ClusterSpec,
    FailedPreconditionError,
    InvalidTypeError,
    StratagemError,
    Variable,
)
from stratagem._shipping.outcome_forms import PICKLED
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.client.clusters import running
from tests.client.shipping.coordination import Coordination, coordinating


@pytest.fixture(scope="module")
def coordination() -> Iterator[Coordination]:
    with coordinating() as found:
        yield found


class Loader:
    def __init__(self) -> None:
        self.state = {"lock": threading.Lock()}


def refusal(coordination: Coordination, value: Any) -> str:
    with pytest.raises(InvalidTypeError) as found:
        coordination.closure_pickler.dump(value)
    return str(found.value)


def test_a_refusal_says_what_where_and_what_to_do(coordination: Coordination) -> None:
    loader = Loader()

    def train_step() -> Any:
        return loader

    train_step.__qualname__ = "train_step"
    assert refusal(coordination, train_step) == (
        "the closure cannot be sent between a program and its workers: "
        "loader.state['lock'] in function 'train_step' is a _thread.lock, which cannot "
        "be pickled (cannot pickle '_thread.lock' object). Make it inside the "
        "function, or pass what it is made of"
    )


def test_the_way_goes_through_functions_and_containers(
    coordination: Coordination,
) -> None:
    lock = threading.Lock()

    def inner() -> Any:
        return lock

    def outer(extra: Any = inner) -> Any:
        return extra

    nested = {"steps": [partial(outer, 1)]}
    assert "lock in function 'test_the_way" in refusal(coordination, nested)
    assert "[0].lock is a" in refusal(coordination, [types.SimpleNamespace(lock=lock)])
    assert "it is a generator" in refusal(coordination, (one for one in "ab"))


def test_an_attribute_of_a_module_is_refused_too(coordination: Coordination) -> None:
    model = coordination.built(lambda: nn.Linear(1, 1))
    model.guard = threading.Lock()
    found = refusal(coordination, lambda: model)
    assert "model.guard in function" in found
    assert "is a _thread.lock" in found
    del model.guard
    assert coordination.ship(model).in_features == 1


def test_what_a_refused_module_had_changed_is_sent_later(
    coordination: Coordination,
) -> None:
    model = coordination.built(lambda: nn.Linear(1, 1))
    theirs = coordination.ship(model)
    model.noted, model.guard = "new", threading.Lock()
    refusal(coordination, model)
    del model.guard
    assert coordination.ship(model) is theirs
    assert theirs.noted == "new"


def test_variables_of_other_strategies_are_refused(coordination: Coordination) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            v, model = Variable(1.0, name="foreign"), nn.Linear(1, 1)
        assert "variable 'foreign' is of another strategy" in refusal(coordination, v)
        found = refusal(coordination, lambda: model.weight)
        assert "parameter 'weight' is of another strategy" in found
        assert "another strategy" in refusal(coordination, strategy)


def test_other_resolvers_are_refused(coordination: Coordination) -> None:
    resolver = SimpleClusterResolver(ClusterSpec({"worker": ["w.test:1"]}))
    assert "resolver in function" in refusal(coordination, lambda: resolver)


def test_a_module_that_torch_does_not_pickle_is_named(
    coordination: Coordination,
) -> None:
    normed = coordination.built(lambda: weight_norm(nn.Linear(2, 2)))
    found = refusal(coordination, lambda: normed)
    assert "normed in function" in found
    assert "Serialization of parametrized modules" in found


def test_lazy_parameters_are_refused_until_they_have_a_shape(
    coordination: Coordination,
) -> None:
    model = coordination.built(lambda: nn.LazyLinear(2))
    with pytest.raises(FailedPreconditionError, match="call its module once on the coordinator"):
        coordination.ship(model)
    model(torch.ones(1, 3))
    assert coordination.ship(model).in_features == 3


def test_a_result_that_cannot_be_pickled_is_refused_alike() -> None:
    with pytest.raises(InvalidTypeError, match=r"the result cannot .* \['a'\] is a "):
        PICKLED.dump({"a": threading.Lock()})


@pytest.fixture
def vanishing() -> Iterator[types.ModuleType]:
    """A module that the coordinator can import, and that is gone later."""
    module = types.ModuleType("vanishing")
    exec("def function(): return 1\nclass Marker: pass", module.__dict__)
    sys.modules["vanishing"] = module
    yield module
    sys.modules.pop("vanishing", None)


def test_a_module_that_workers_lack_is_named(
    coordination: Coordination, vanishing: types.ModuleType
) -> None:
    parcel = coordination.closure_pickler.dump(vanishing.function)
    del sys.modules["vanishing"]
    with pytest.raises(ClosureInputError) as found:
        coordination.load(parcel)
    assert str(found.value) == (
        "/job:worker/task:0 cannot load the closure: ModuleNotFoundError: No module "
        "named 'vanishing'. Install vanishing on the workers, or let it travel with "
        "the functions by cloudpickle.register_pickle_by_value"
    )
    assert isinstance(found.value.original_exception, ModuleNotFoundError)
    assert isinstance(found.value, StratagemError)
    assert found.value.task == "/job:worker/task:0"


def test_a_module_can_be_told_to_travel(
    coordination: Coordination, vanishing: types.ModuleType
) -> None:
    cloudpickle.register_pickle_by_value(vanishing)
    parcel = coordination.closure_pickler.dump(vanishing.function)
    cloudpickle.unregister_pickle_by_value(vanishing)
    del sys.modules["vanishing"]
    assert coordination.load(parcel)() == 1


def test_the_object_whose_part_is_missing_is_named(
    coordination: Coordination, vanishing: types.ModuleType
) -> None:
    model = coordination.built(lambda: nn.Linear(1, 1))
    model.marker = vanishing.Marker()
    parcel = coordination.closure_pickler.dump(model)
    del sys.modules["vanishing"]
    with pytest.raises(ClosureInputError, match="load module Linear: ModuleNotFound"):
        coordination.load(parcel)
    sys.modules["vanishing"] = vanishing
    assert isinstance(coordination.load(parcel).marker, vanishing.Marker)


def test_a_handle_of_which_nothing_is_known_is_an_input_error(
    coordination: Coordination,
) -> None:
    parcel = coordination.closure_pickler.dump(coordination.strategy)
    with pytest.raises(ClosureInputError, match="has nothing under handle"):
        coordination.worker(1).load(parcel.payload)


def test_a_function_that_is_not_there_asks_for_the_same_version(
    coordination: Coordination, vanishing: types.ModuleType
) -> None:
    parcel = coordination.closure_pickler.dump(vanishing.function)
    del vanishing.function
    with pytest.raises(ClosureInputError, match="the version that the coordinator has"):
        coordination.load(parcel)
