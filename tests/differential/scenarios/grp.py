"""Grouping, which has nothing to wait for."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, one_device, per_replica


@scenario("GRP-1")
def several_components(lib: Library) -> Any:
    strategies = mirrored(lib), central(lib)
    tensors = [lib.tensor(1.0), lib.tensor(2.0)]
    return [each.group(per_replica(lib, each, tensors)) for each in strategies]


@scenario("GRP-1")
def a_single_component(lib: Library) -> Any:
    strategies = mirrored(lib), central(lib), one_device(lib)
    return [each.group(lib.tensor(1.0)) for each in strategies]


@scenario("GRP-1")
def a_single_component_with_a_name(lib: Library) -> Any:
    strategies = mirrored(lib), one_device(lib), lib.distribute.get_strategy()
    return [each.group(lib.tensor(1.0), name="all") for each in strategies]


@scenario("GRP-1")
def nothing(lib: Library) -> Any:
    strategies = mirrored(lib), one_device(lib), lib.distribute.get_strategy()
    return [each.group(value) for each in strategies for value in (None, ())]


@scenario("GRP-1")
def a_nest(lib: Library) -> Any:
    nest = {"a": [lib.tensor(1.0)]}, {"a": lib.tensor(1.0), "b": lib.tensor(2.0)}
    strategies = mirrored(lib), central(lib), one_device(lib)
    return [each.group(value) for each in strategies for value in nest]
