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


@pytest.mark.spec("REG-6")
def test_equal_objects_that_are_not_the_same_are_wrapped() -> None:
    assert values(distributed_values.regroup([float("1.5"), float("1.5")])) == (1.5, 1.5)
    assert type(distributed_values.regroup([[1.5], [2.5]], wrap=Mirrored)[0]) is Mirrored


def mirrored_variable() -> stratagem.Variable:
    with stratagem.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return stratagem.Variable(1.0)


@pytest.mark.spec("REG-5")
@pytest.mark.usefixtures("four_cpus")
def test_the_copies_of_a_variable_become_the_variable() -> None:
    variable = mirrored_variable()
    assert distributed_values.regroup(variable.values) is variable
    assert type(distributed_values.regroup(variable.values, always_wrap=True)) is PerReplica


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
