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
from stratagem._core import distributed_values

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Pair:
    left: Any
    right: Any


pytree.register_pytree_node(
    Pair, lambda pair: ([pair.left, pair.right], None), lambda both, _: Pair(*both)
)


def values(value: Any) -> tuple[Any, ...]:
    assert isinstance(value, PerReplica)
    return value.values


@pytest.mark.spec("REG-1", "REG-2", "REG-6")
def test_lists_and_tuples_are_merged_item_by_item() -> None:
    merged = distributed_values.regroup([[1.5, (2.5,)], [3.5, (4.5,)]])
    assert type(merged) is list
    assert type(merged[1]) is tuple
    assert values(merged[0]) == (1.5, 3.5)
    assert values(merged[1][0]) == (2.5, 4.5)


@pytest.mark.spec("REG-2")
def test_named_tuples_keep_their_type() -> None:
    """A tuple on replica 0 beside a named one is accepted."""
    merged = distributed_values.regroup([Point(1.5, 2.5), Point(3.5, 4.5)])
    assert type(merged) is Point
    assert values(merged.y) == (2.5, 4.5)
    assert type(distributed_values.regroup([(1.5, 2.5), Point(3.5, 4.5)])) is tuple


@pytest.mark.spec("REG-3")
@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda d: defaultdict(list, d)])
def test_mappings_keep_their_type_whatever_the_order_of_keys(kind: Any) -> None:
    """A `defaultdict` too (ODD-19)."""
    first, second = kind({"a": 1.5, "b": 2.5}), kind({"b": 4.5, "a": 3.5})
    merged = distributed_values.regroup([first, second])
    assert type(merged) is type(first)
    assert values(merged["a"]) == (1.5, 3.5)
    assert getattr(merged, "default_factory", None) is getattr(first, "default_factory", None)


@pytest.mark.spec("REG-6", "REG-10")
def test_registered_dataclasses_are_nests() -> None:
    """Torch's own trees."""
    merged = distributed_values.regroup([Pair(1.5, None), Pair(2.5, None)])
    assert values(merged.left) == (1.5, 2.5)
    assert merged.right is None
    assert distributed_values.select_replica(1, merged) == Pair(2.5, None)


@pytest.mark.spec("REG-2")
def test_results_of_torch_functions_are_nests() -> None:
    """The tuples that torch returns."""
    merged = distributed_values.regroup([torch.ones(2).max(0), torch.zeros(2).max(0)])
    assert values(merged.values) == (1.0, 0.0)
    shape = distributed_values.regroup([torch.Size([2, 3]), torch.Size([700, 3])])
    assert shape[1] == 3
    assert values(shape[0]) == (2, 700)


@pytest.mark.parametrize(
    "nests",
    [
        pytest.param(([1], [1, 2]), marks=pytest.mark.spec("REG-1")),
        pytest.param(([1], (1,)), marks=pytest.mark.spec("REG-1")),
        pytest.param(([1], 1), marks=pytest.mark.spec("REG-1")),
        pytest.param(((1,), (1, 2)), marks=pytest.mark.spec("REG-2")),
        pytest.param(({"a": 1}, {"b": 1}), marks=pytest.mark.spec("REG-3")),
    ],
)
def test_nests_that_differ_in_structure_are_refused(nests: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="Cannot merge"):
        distributed_values.regroup(nests)


@pytest.mark.spec("REG-4")
def test_the_very_same_object_stays_itself() -> None:
    module = torch.nn.Linear(1, 1)
    for value in (None, 3, "name", module):
        assert distributed_values.regroup([value, value]) is value


@pytest.mark.spec("REG-6")
def test_equal_objects_that_are_not_the_same_are_wrapped() -> None:
    assert values(distributed_values.regroup([float("1.5"), float("1.5")])) == (1.5, 1.5)
    assert type(distributed_values.regroup([[1.5], [2.5]], wrap=Mirrored)[0]) is Mirrored


@pytest.mark.spec("REG-7")
def test_wrapping_can_be_demanded() -> None:
    assert values(distributed_values.regroup([None, None], always_wrap=True)) == (None, None)


@pytest.mark.spec("REG-8")
def test_the_leaves_of_one_replica_stay_unwrapped() -> None:
    """Structures are rebuilt."""
    nest = [1.5, {"a": 2.5}]
    assert distributed_values.regroup([nest]) == nest
    assert values(distributed_values.regroup([1.5], always_wrap=True)) == (1.5,)


def mirrored_variable() -> stratagem.Variable:
    with stratagem.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return stratagem.Variable(1.0)


@pytest.mark.spec("REG-5")
@pytest.mark.usefixtures("four_cpus")
def test_the_copies_of_a_variable_become_the_variable() -> None:
    variable = mirrored_variable()
    assert distributed_values.regroup(variable.values) is variable
    assert type(distributed_values.regroup(variable.values, always_wrap=True)) is PerReplica


@pytest.mark.spec("REG-9")
@pytest.mark.usefixtures("four_cpus")
def test_a_copy_beside_something_else_is_refused() -> None:
    variable = mirrored_variable()
    first, _ = variable.values
    with pytest.raises(ValueError, match="components"):
        distributed_values.regroup([first, 2.0])


@pytest.mark.spec("REG-10")
@pytest.mark.usefixtures("four_cpus")
def test_selection_is_the_inverse_and_leaves_variables_alone() -> None:
    nests = [{"a": [1.5, "s"]}, {"a": [2.5, "s"]}]
    merged = distributed_values.regroup(nests)
    assert [distributed_values.select_replica(index, merged) for index in (0, 1)] == nests
    variable = mirrored_variable()
    assert distributed_values.select_replica(1, [variable])[0] is variable


@pytest.mark.spec("REG-11")
def test_mirrored_selection_refuses_what_may_differ() -> None:
    assert distributed_values.select_replica_mirrored(1, [Mirrored((1, 2)), 3]) == [2, 3]
    with pytest.raises(TypeError, match="Expected value to be mirrored"):
        distributed_values.select_replica_mirrored(0, [PerReplica((1, 2))])


@pytest.mark.spec("REG-12")
def test_update_results_are_mirrored_or_listed() -> None:
    """A result identical on all replicas gives a 1-tuple; numbers are lost."""
    first, second = torch.tensor(1.5), torch.tensor(2.5)
    results = [{"a": first, "b": None, "c": 1.5}, {"a": second, "b": None, "c": 2.5}]
    grouped = distributed_values.regroup_updates(results, group=True)
    assert type(grouped["a"]) is Mirrored
    assert grouped["a"].values == (first, second)
    assert (grouped["b"], grouped["c"]) == (None, None)
    listed = distributed_values.regroup_updates(results, group=False)
    assert listed == {"a": (first, second), "b": (None,), "c": (1.5, 2.5)}


Spec = namedtuple("Spec", ["loss", "scaffold"])


@pytest.mark.spec("REG-13")
def test_no_field_of_a_named_tuple_is_special() -> None:
    merged = distributed_values.regroup([Spec(1.5, 2.5), Spec(3.5, 4.5)])
    assert values(merged.scaffold) == (2.5, 4.5)


class Named(dict[str, Any]):
    """A dict whose constructor takes keywords only, and which has an attribute."""

    def __init__(self, *, a: Any, b: Any) -> None:
        super().__init__(a=a, b=b)
        self.note = "kept"


def test_a_dict_whose_constructor_takes_keywords_only_is_taken_apart() -> None:
    given = Named(a=PerReplica((1, 2)), b=3)
    one = distributed_values.select_replica(1, given)
    assert (type(one), one, one.note) == (Named, {"a": 2, "b": 3}, "kept")
    assert given["a"].values == (1, 2)
    merged = distributed_values.regroup([Named(a=1, b=5), Named(a=2, b=5)])
    assert (type(merged), merged["a"].values, merged["b"]) == (Named, (1, 2), 5)
