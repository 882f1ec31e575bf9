"""Containers with one value per replica."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stratagem
from stratagem import Mirrored, PerReplica
from tests.client.two_replicas import TwoReplicas

BINARY: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]
BITWISE: list[Callable[[Any, Any], Any]] = [operator.and_, operator.or_, operator.xor]


def test_values_are_kept_in_replica_order() -> None:
    """VAL-1, VAL-10: numbers are kept as they are."""
    assert stratagem.DistributedValues((3.0, 2.0)).values == (3.0, 2.0)


def test_the_repr_has_a_line_for_each_replica() -> None:
    """VAL-4."""
    assert repr(PerReplica((1, 2))) == "PerReplica:{\n  0: 1,\n  1: 2\n}"


def test_per_replica_values_have_no_arithmetic() -> None:
    """VAL-4: `pr + 1.` TypeError."""
    with pytest.raises(TypeError):
        PerReplica((1.0, 2.0)) + 1.0  # type: ignore[operator]


def test_a_per_replica_value_is_no_tensor_outside_of_a_replica() -> None:
    """VAL-6: “using a PerReplica object while not inside a replica context”."""
    value = PerReplica((torch.ones(1), torch.zeros(1)))
    with pytest.raises(
        ValueError,
        match=r"using a PerReplica object while not inside a replica context.*run",
    ):
        torch.add(value, 1)  # type: ignore[call-overload]


def test_a_replica_sees_its_component_of_a_captured_value() -> None:
    """VAL-3."""
    value: Any = PerReplica((torch.tensor(1.0), torch.tensor(5.0)))
    seen = TwoReplicas().run(lambda: (torch.add(value, 1), torch.ones(()) - value))
    assert [v.values for v in seen] == [(2.0, 6.0), (0.0, -4.0)]


def test_the_current_device_selects_a_component_of_a_mirrored_value() -> None:
    """VAL-3: the component of the current device if present, else replica 0's."""
    variables = []
    for name in ("CPU:0", "CPU:1"):
        with stratagem.device(name):
            variables.append(stratagem.Variable(name == "CPU:1", dtype=torch.int64))
    mirrored = Mirrored(variables)
    with stratagem.device("CPU:1"):
        assert int(mirrored) == 1
    with stratagem.device("CPU:2"):
        assert int(mirrored) == 0
    assert int(mirrored) == 0


@pytest.mark.parametrize("act", [*BINARY, *BITWISE], ids=lambda act: act.__name__)
def test_operators_see_the_component_of_a_mirrored_value(
    act: Callable[[Any, Any], Any],
) -> None:
    """VAL-5."""
    value = Mirrored((7, 7))
    assert act(value, 2) == act(7, 2)
    assert act(2, value) == act(2, 7)


def test_unary_operators_and_indexing_see_the_component() -> None:
    """VAL-5."""
    tensor = torch.tensor([[1, 2], [3, 4]])
    value = Mirrored((tensor, tensor))
    for act in (operator.neg, operator.pos, operator.abs, operator.invert):
        assert torch.equal(act(value), act(tensor))
    assert torch.equal(value[0], tensor[0])
    assert torch.equal(value @ tensor, tensor @ tensor)
    assert torch.equal(tensor @ value, tensor @ tensor)
    assert len(value) == 2


def test_attributes_of_the_component_show_through() -> None:
    """VAL-7, VAL-8: copy.copy keeps delegation."""
    value = Mirrored((torch.ones(2, 3),) * 2)
    assert value.shape == (2, 3)
    assert copy.copy(value).sum() == 6
    with pytest.raises(AttributeError):
        value._private  # noqa: B018 - the access is what is tested


def test_local_results_of_a_distributed_value_are_its_components() -> None:
    """LOC-1, LOC-2."""
    strategy = TwoReplicas()
    local = strategy.experimental_local_results
    assert local(PerReplica((1, 2))) == (1, 2)
    assert local(None) == (None,)
    assert local("a") == ("a",)


def test_local_results_of_a_nest_are_nests() -> None:
    """LOC-3, LOC-4."""
    local = TwoReplicas().experimental_local_results
    nest = {"a": PerReplica((1, 2)), "b": [3, PerReplica((4, 5))]}
    assert local(nest) == ({"a": 1, "b": [3, 4]}, {"a": 2, "b": [3, 5]})
    assert local(()) == ((), ())


def test_local_results_of_a_variable_with_one_copy_are_the_variable() -> None:
    """LOC-5."""
    strategy = TwoReplicas()
    with strategy.scope():
        variable = stratagem.Variable(1.0)
    (result,) = strategy.experimental_local_results(variable)
    assert result is variable


def test_grouping_returns_nothing() -> None:
    """GRP-1: eager: None."""
    group: Any = TwoReplicas().group
    assert group(PerReplica((1, 2))) is None
