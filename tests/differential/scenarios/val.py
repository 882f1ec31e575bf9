"""Containers with one value per replica."""

from __future__ import annotations

import copy
import operator
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, per_replica


class Item:
    """Something with an attribute and a method."""

    def __init__(self, x: int) -> None:
        self.x = x

    def doubled(self) -> int:
        return self.x * 2


@scenario("VAL-6", core=(54,), says=("not inside a replica context",))
def a_value_for_each_replica_is_no_tensor(lib: Library) -> Any:
    strategy = mirrored(lib)
    value = per_replica(lib, strategy, [lib.tensor(1.0), lib.tensor(2.0)])
    return lib.total(value)


@scenario("VAL-4")
def a_value_for_each_replica_has_no_arithmetic(lib: Library) -> Any:
    value = lib.distribute.PerReplica((1.0, 2.0))
    operators = operator.add, operator.mul, operator.getitem
    return [attempt(act, value, 1) for act in operators]


@scenario("VAL-4", "VAL-1")
def what_values_look_like(lib: Library) -> Any:
    kinds = lib.distribute.PerReplica, lib.distribute.Mirrored
    return [[repr(kind((1, 2))), kind((1, 2)).values] for kind in kinds]


@scenario("VAL-5", core=(56,))
def operators_see_the_component(lib: Library) -> Any:
    value = lib.distribute.Mirrored((7, 8))
    binary = "add sub mul truediv floordiv mod pow and_ or_ xor lt le gt ge"
    acts = [getattr(operator, name) for name in binary.split()]
    unary = operator.neg, operator.abs, operator.invert
    text = lib.distribute.Mirrored(("abc", "def"))
    return [
        [act(value, 2) for act in acts],
        [act(2, value) for act in acts],
        [act(value) for act in unary],
        [text[1], text + "d"],
    ]


@scenario("VAL-7")
def attributes_show_through(lib: Library) -> Any:
    value = lib.distribute.Mirrored((Item(7), Item(8)))
    return [value.x, value.doubled(), attempt(lambda: value.y)]


@scenario("VAL-8")
def a_copy_delegates_too(lib: Library) -> Any:
    value = lib.distribute.Mirrored((Item(7), Item(8)))
    return copy.copy(value).x


@scenario("VAL-5")
def mirrored_tensors_are_added(lib: Library) -> Any:
    tensors = lib.tensor(1.0), lib.tensor(1.0)
    one, other = lib.distribute.Mirrored(tensors), lib.distribute.Mirrored(tensors)
    return [one + other, one * 3.0]


@scenario("VAL-3")
def a_replica_sees_its_component(lib: Library) -> Any:
    results = []
    for strategy in (mirrored(lib), central(lib)):
        value = per_replica(lib, strategy, [lib.tensor(1.0), lib.tensor(5.0)])
        results.append(strategy.run(lambda value=value: lib.total(value)))
    return results


@scenario("VAL-10")
def numbers_stay_numbers(lib: Library) -> Any:
    strategy = central(lib)
    value = per_replica(lib, strategy, [3.0, 2.0])
    return [value, strategy.experimental_local_results(value)]
