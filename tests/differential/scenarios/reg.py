"""From one nest per replica to one nest of distributed values, and back."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import mirrored, replica_id

Point = namedtuple("Point", ["x", "y"])


class Named(dict[str, Any]):
    """A mapping with a type of its own."""


def nest(number: int) -> Any:
    """Return a tuple of lists of mappings, other leaves for each number."""
    leaves = [f"{name}{number}" for name in ("one", "two", "three")]
    return ([{"a": leaves[0], "b": leaves[1]}, {"c": leaves[2]}], (leaves[0],))


@scenario("REG-1", "REG-2", "REG-3", "REG-6", "REG-10", "REG-11", core=(42,))
def nests_are_merged_and_taken_apart(lib: Library) -> Any:
    names = lib.distribute
    merged = names.regroup((nest(1), nest(2)))
    return [
        merged,
        [names.select_replica(index, merged) == nest(index + 1) for index in (0, 1)],
        attempt(names.select_replica_mirrored, 0, merged),
    ]


@scenario("REG-3", core=(43,))
def mappings_keep_their_type(lib: Library) -> Any:
    kinds = Named, OrderedDict, dict
    return [lib.distribute.regroup((kind(a=1.5), kind(a=2.5))) for kind in kinds]


@scenario("REG-2")
def named_tuples_keep_their_type(lib: Library) -> Any:
    pairs = (Point(0.5, 2.5), Point(1.5, 3.5)), ((0.5, 2.5), Point(1.5, 3.5))
    return [lib.distribute.regroup(pair) for pair in pairs]


@scenario("REG-4", core=(47,))
def one_object_stays_itself(lib: Library) -> Any:
    regroup, same = lib.distribute.regroup, object()
    merged = regroup(((same, "a1", None, 3), (same, "a2", None, 3)))
    return [merged[0] is same, merged[1:]]


@scenario("REG-11", "REG-6")
def a_class_to_wrap_by(lib: Library) -> Any:
    names = lib.distribute
    merged = names.regroup((nest(1), nest(2)), names.Mirrored)
    selected = names.select_replica_mirrored(1, merged)
    return [merged, selected == nest(2)]


@scenario("REG-7", "REG-8")
def wrapping_may_be_demanded(lib: Library) -> Any:
    names = lib.distribute
    wrapped = names.regroup((None, None), names.PerReplica, True)
    alone = names.regroup((1.5,), names.PerReplica, True)
    return [wrapped, alone, names.regroup(([1.5, {"a": 2.5}],))]


@scenario("REG-5", "REG-10")
def copies_of_a_variable(lib: Library) -> Any:
    strategy = mirrored(lib)
    with strategy.scope():
        variable = lib.distribute.Variable(1.0)
    merged = lib.distribute.regroup(variable.values)
    selected = lib.distribute.select_replica(1, [variable])
    return [merged is variable, selected[0] is variable]


@scenario("REG-9")
def a_copy_beside_something_else(lib: Library) -> Any:
    strategy = mirrored(lib)
    with strategy.scope():
        variable = lib.distribute.Variable(1.0)
    return lib.distribute.regroup((variable.values[0], 2.0))


@scenario("REG-1", "REG-2", "REG-3")
def structures_that_differ(lib: Library) -> Any:
    pairs = ([1], [1, 2]), ((1,), (1, 2)), ({"a": 1}, {"b": 1}), ([1], (1,)), ([1], 1)
    return [attempt(lib.distribute.regroup, pair) for pair in pairs]


@scenario("REG-1")
def replicas_that_return_other_lengths(lib: Library) -> Any:
    return mirrored(lib).run(lambda: [1] * (replica_id(lib) + 1))
