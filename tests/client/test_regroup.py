"""From one nest per replica to one nest of distributed values, and back."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import stratagem
from stratagem import Mirrored, PerReplica
from stratagem._replicas.regroup import (
    regroup,
    regroup_updates,
    select_replica,
    select_replica_mirrored,
)
from tests.client.two_replicas import TwoReplicas

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Pair:
    left: Any
    right: Any


pytree.register_dataclass(Pair)


def values(value: Any) -> tuple[Any, ...]:
    assert isinstance(value, PerReplica)
    return value.values


def test_lists_and_tuples_are_merged_item_by_item() -> None:
    """REG-1, REG-2, REG-6."""
    merged = regroup([[1.5, (2.5,)], [3.5, (4.5,)]])
    assert type(merged) is list
    assert type(merged[1]) is tuple
    assert values(merged[0]) == (1.5, 3.5)
    assert values(merged[1][0]) == (2.5, 4.5)


def test_named_tuples_keep_their_type() -> None:
    """REG-2; a tuple on replica 0 and a namedtuple on replica 1 are accepted."""
    merged = regroup([Point(1.5, 2.5), Point(3.5, 4.5)])
    assert type(merged) is Point
    assert values(merged.y) == (2.5, 4.5)
    assert type(regroup([(1.5, 2.5), Point(3.5, 4.5)])) is tuple


@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda d: defaultdict(list, d)])
def test_mappings_keep_their_type_whatever_the_order_of_keys(kind: Any) -> None:
    """REG-3, ODD-19: `defaultdict` results work."""
    first, second = kind({"a": 1.5, "b": 2.5}), kind({"b": 4.5, "a": 3.5})
    merged = regroup([first, second])
    assert type(merged) is type(first)
    assert values(merged["a"]) == (1.5, 3.5)
    assert getattr(merged, "default_factory", None) is getattr(
        first, "default_factory", None
    )


def test_registered_dataclasses_are_nests() -> None:
    """REG-6 for torch's own trees."""
    merged = regroup([Pair(1.5, None), Pair(2.5, None)])
    assert values(merged.left) == (1.5, 2.5)
    assert merged.right is None
    assert select_replica(1, merged) == Pair(2.5, None)


def test_results_of_torch_functions_are_nests() -> None:
    """REG-2 for the tuples that torch returns."""
    merged = regroup([torch.ones(2).max(0), torch.zeros(2).max(0)])
    assert values(merged.values) == (1.0, 0.0)
    shape = regroup([torch.Size([2, 3]), torch.Size([700, 3])])
    assert shape[1] == 3
    assert values(shape[0]) == (2, 700)


@pytest.mark.parametrize(
    "nests",
    [
        ([1], [1, 2]),
        ((1,), (1, 2)),
        ({"a": 1}, {"b": 1}),
        ([1], (1,)),
        ([1], 1),
    ],
)
def test_nests_that_differ_in_structure_are_refused(nests: tuple[Any, Any]) -> None:
    """REG-1 to REG-3: lengths, types and key sets must agree."""
    with pytest.raises(stratagem.InvalidArgumentError, match="Cannot merge"):
        regroup(nests)


def test_the_very_same_object_stays_itself() -> None:
    """REG-4: None, small ints, interned strings, modules."""
    module = torch.nn.Linear(1, 1)
    for value in (None, 3, "name", module):
        assert regroup([value, value]) is value


def test_equal_objects_that_are_not_the_same_are_wrapped() -> None:
    """REG-6: even if equal."""
    assert values(regroup([float("1.5"), float("1.5")])) == (1.5, 1.5)
    assert type(regroup([[1.5], [2.5]], wrap=Mirrored)[0]) is Mirrored


def test_wrapping_can_be_demanded() -> None:
    """REG-7."""
    assert values(regroup([None, None], always_wrap=True)) == (None, None)


def test_the_leaves_of_one_replica_stay_unwrapped() -> None:
    """REG-8: structures are rebuilt."""
    nest = [1.5, {"a": 2.5}]
    assert regroup([nest]) == nest
    assert values(regroup([1.5], always_wrap=True)) == (1.5,)


def container_of_two() -> tuple[stratagem.Variable, list[stratagem.Variable]]:
    """A variable that stands for both of the returned ones."""
    strategy = TwoReplicas()
    with strategy.scope():
        container = stratagem.Variable(1.0)
    first = container._variable
    second = stratagem.Variable(1.0)
    second._container_ref = first._container_ref
    return container, [first, second]


def test_the_components_of_a_variable_become_the_variable() -> None:
    """REG-5."""
    container, components = container_of_two()
    assert regroup(components) is container


def test_a_component_beside_something_else_is_refused() -> None:
    """REG-9."""
    container, components = container_of_two()
    with pytest.raises(stratagem.InvalidArgumentError, match="components"):
        regroup([components[0], 2.0])
    assert regroup(components) is container


def test_selection_is_the_inverse_and_leaves_variables_alone() -> None:
    """REG-10."""
    nests = [{"a": [1.5, "s"]}, {"a": [2.5, "s"]}]
    merged = regroup(nests)
    assert [select_replica(index, merged) for index in (0, 1)] == nests
    variable = stratagem.Variable(1.0)
    assert select_replica(1, [variable])[0] is variable


def test_mirrored_selection_refuses_what_may_differ() -> None:
    """REG-11: TypeError “Expected value to be mirrored”."""
    assert select_replica_mirrored(1, [Mirrored((1, 2)), 3]) == [2, 3]
    with pytest.raises(TypeError, match="Expected value to be mirrored"):
        select_replica_mirrored(0, [PerReplica((1, 2))])


def test_update_results_are_mirrored_or_listed() -> None:
    """REG-12, EXT-4: a result identical on all replicas gives a 1-tuple."""
    results = [{"a": 1.5, "b": None}, {"a": 2.5, "b": None}]
    grouped = regroup_updates(results, group=True)
    assert type(grouped["a"]) is Mirrored
    assert grouped["b"] is None
    assert regroup_updates(results, group=False) == {"a": (1.5, 2.5), "b": (None,)}
