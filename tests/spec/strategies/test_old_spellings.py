"""How a process is told that a method has a new name."""

from __future__ import annotations

import inspect
import warnings
from enum import Enum
from typing import Any

import pytest
import torch

import stratagem
from stratagem import contrib, experimental
from stratagem._core import options
from stratagem._strategies.strategy import MovedToExtended
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError


def test_a_process_is_told_once_of_each_spelling() -> None:
    options.warned.clear()
    strategy = stratagem.OneDeviceStrategy("CPU:0")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            strategy.unwrap(1)
            strategy.experimental_initialize()
    assert [(str(each.message), each.filename) for each in caught] == [
        ("unwrap is deprecated; use experimental_local_results instead", __file__),
        (
            "experimental_initialize is deprecated; use nothing, as there is nothing "
            "to initialize, instead",
            __file__,
        ),
    ]


def test_where_warnings_are_errors_every_use_is_one() -> None:
    options.warned.clear()
    for _ in range(2):
        with pytest.raises(DeprecationWarning, match=r"use stratagem\.OneDeviceStr"):
            contrib.OneDeviceStrategy("CPU:0")


WITHOUT_NEW_NAME = {
    "last_step_outputs",
    "non_tensor_outputs",
    "run_op",
    "scope",
    "steps_per_run",
}

# What parameter servers never had says so instead.
REFUSED = {"is_single_tower", "worker_device_index", "run_steps_on_dataset"}


@pytest.mark.parametrize("name", contrib.__all__)
def test_every_name_of_then_has_one_of_today(name: str) -> None:
    value = getattr(contrib, name)
    spellings = public_members(value) if inspect.isclass(value) else {name: value}
    refused = REFUSED if value is contrib.ParameterServerStrategy else set()
    for spelling in spellings.keys() - WITHOUT_NEW_NAME - refused:
        message = spellings[spelling].__deprecated__
        assert message.startswith(f"{spelling} is deprecated; use ")


def public_members(kind: type) -> dict[str, Any]:
    """Return the functions of methods and properties, but none of an enumeration."""
    members = {key: inspect.getattr_static(kind, key) for key in dir(kind)}
    return {
        key: getattr(member, "fget", member)
        for key, member in members.items()
        if not key.startswith("_") and not issubclass(kind, Enum)
    }


def test_names_of_then_show_where_they_are() -> None:
    assert contrib.MirroredStrategy.__module__ == "stratagem.contrib"
    assert contrib.get_tower_context.__module__ == "stratagem.contrib"
    assert contrib.VariableAggregation is stratagem.VariableAggregation
    assert contrib.VariableAggregation.__module__ == "stratagem"


# What TensorFlow has, but not in public, and what is in `tf.experimental`.
NOT_PUBLIC = {"cache_variable_reads", "Optional"}


@pytest.mark.parametrize("name", sorted({*experimental.__all__} - NOT_PUBLIC))
def test_what_is_experimental_in_tensorflow_is_public_here(name: str) -> None:
    renamed = {
        "CollectiveCommunication": "CommunicationImplementation",
        "CollectiveHints": "CommunicationOptions",
    }
    public = getattr(stratagem, renamed.get(name, name))
    assert getattr(experimental, name) is public


@pytest.mark.spec("NAM-2")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_strategies_had_what_extended_has() -> None:
    strategy = stratagem.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        v = stratagem.Variable(1.0)
        with strategy.colocate_vars_with(v):
            assert strategy.value_container(v) is v
    assert strategy.worker_devices == strategy.extended.worker_devices
    assert strategy.call_for_each_replica(lambda x: x + 1, args=(2,)) == 3
    strategy.update(v, lambda component, x: component.assign_add(x), args=(2.0,))
    assert strategy.read_var(v).item() == 3
    assert not strategy.between_graph


def test_what_has_moved_is_still_there() -> None:
    moved = {key for key in vars(MovedToExtended) if not key.startswith("_")}
    for name in moved:
        message = getattr(MovedToExtended, name).fget.__deprecated__
        new = message.rpartition("extended.")[2].removesuffix(" instead")
        assert message.startswith(f"{name} is deprecated; use extended.")
        assert inspect.getattr_static(stratagem.StrategyExtended, new)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "method",
    [
        "run",
        "experimental_run",
        "experimental_run_v2",
        "make_input_fn_iterator",
        "experimental_distribute_values_from_function",
    ],
)
@pytest.mark.parametrize("make", [stratagem.get_strategy, stratagem.MirroredStrategy])
def test_what_is_no_function_is_refused_by_name(method: str, make: Any) -> None:
    with pytest.raises(InvalidTypeError, match="takes a function"):
        getattr(make(), method)(3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [contrib.MirroredStrategy, contrib.OneDeviceStrategy])
def test_towers_take_a_dataset_from_a_function(kind: Any) -> None:
    with pytest.raises(InvalidTypeError, match="takes a function"):
        kind("CPU:0" if kind is contrib.OneDeviceStrategy else None).distribute_dataset([1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("args", [3, torch.ones(2)])
def test_an_older_run_refuses_a_single_argument(args: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="args=\\(x,\\)"):
        stratagem.get_strategy().experimental_run_v2(torch.ones, args)


@pytest.mark.spec("STR-21")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_older_run_takes_its_arguments_from_any_iterable() -> None:
    strategy = stratagem.get_strategy()
    assert strategy.experimental_run_v2(lambda *xs, y: [*xs, y], range(2), {"y": 2}) == [
        0,
        1,
        2,
    ]
