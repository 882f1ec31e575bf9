"""Containers with one value per replica."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import stratagem
from stratagem import DistributedValues, Mirrored, MirroredStrategy, PerReplica
from tests.deprecations import warns_to_use

pytestmark = pytest.mark.usefixtures("four_cpus")

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


@pytest.mark.spec("VAL-1")
def test_values_are_kept_in_replica_order() -> None:
    for kind in (DistributedValues, PerReplica, Mirrored):
        assert kind([1, 2]).values == (1, 2)
        assert isinstance(kind([1, 2]), DistributedValues)


@pytest.mark.spec("VAL-1", "VAL-2")
def test_values_made_by_device_are_got_by_device() -> None:
    """As up to 1.13; names are canonicalised."""
    value = DistributedValues({"/cpu:0": 1, "/device:CPU:1": 2})
    assert value.values == (1, 2)
    with warns_to_use(r"strategy\.experimental_local_results"):
        assert value.get("CPU:1") == 2
        with pytest.raises(ValueError, match="not found in"):
            value.get("CPU:2")
    with warns_to_use(r"strategy\.extended\.worker_devices"):
        assert value.on_device("/device:CPU:0")
        assert not value.on_device("CPU:2")
    with warns_to_use(r"strategy\.extended\.worker_devices"):
        assert [name[-5:] for name in value.devices] == ["CPU:0", "CPU:1"]


@pytest.mark.spec("VAL-2")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_values_are_on_the_devices_of_the_strategy_in_scope() -> None:
    strategy = MirroredStrategy(["CPU:2", "CPU:3"])
    value = strategy.run(lambda: stratagem.get_strategy() and torch.ones(1))
    with strategy.scope():
        assert value.devices == strategy.extended.worker_devices
        assert value.get("CPU:3") is value.values[1]
        with pytest.raises(ValueError, match="3 components"):
            PerReplica([1, 2, 3]).get("CPU:2")
    with pytest.raises(RuntimeError, match="enter the scope"):
        value.get("CPU:3")
    numbers = PerReplica([1, 2])
    assert strategy.run(lambda: numbers.get()).values == (1, 2)
    assert (value.is_tensor_like, numbers.is_tensor_like) == (True, False)


@pytest.mark.spec("VAL-4")
def test_per_replica_values_have_no_arithmetic() -> None:
    value = PerReplica((1.0, 2.0))
    with pytest.raises(TypeError):
        value + 1.0  # type: ignore[operator]
    assert repr(value).startswith("PerReplica:{")


@pytest.mark.spec("VAL-3")
def test_an_update_sees_the_component_beside_the_copy() -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = stratagem.Variable(0.0)
    value = Mirrored((torch.tensor(1.0), torch.tensor(5.0)))
    seen = strategy.extended.update(variable, lambda v: value + 0, group=False)
    assert seen == (1.0, 5.0)


@pytest.mark.spec("VAL-3")
def test_the_current_device_selects_a_component_of_a_mirrored_value() -> None:
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


@pytest.mark.spec("VAL-5")
@pytest.mark.parametrize("act", [*BINARY, *BITWISE], ids=lambda act: act.__name__)
def test_operators_see_the_component_of_a_mirrored_value(
    act: Callable[[Any, Any], Any],
) -> None:
    value = Mirrored((7, 7))
    assert act(value, 2) == act(7, 2)
    assert act(2, value) == act(2, 7)


@pytest.mark.spec("VAL-5")
def test_unary_operators_and_indexing_see_the_component() -> None:
    tensor = torch.tensor([[1, 2], [3, 4]])
    value = Mirrored((tensor, tensor))
    for act in (operator.neg, operator.pos, operator.abs, operator.invert):
        assert torch.equal(act(value), act(tensor))
    assert torch.equal(value[0], tensor[0])
    assert torch.equal(value @ tensor, tensor @ tensor)
    assert torch.equal(tensor @ value, tensor @ tensor)
    assert torch.equal(value + value, tensor + tensor)
    assert len(value) == 2


@pytest.mark.spec("VAL-7")
def test_attributes_of_the_component_show_through() -> None:
    value = Mirrored((torch.ones(2, 3),) * 2)
    assert value.shape == (2, 3)
    assert value.sum() == 6
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        value.missing  # noqa: B018 - the access is what is tested
    with pytest.raises(AttributeError):
        value._private  # noqa: B018


@pytest.mark.spec("VAL-8")
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_shows_the_attributes_too(copied: Callable[[Any], Any]) -> None:
    twin = copied(Mirrored((torch.ones(2, 3),) * 2))
    assert type(twin) is Mirrored
    assert twin.sum() == 6


@pytest.mark.spec("VAL-9")
def test_a_form_fits_values_whose_components_fit() -> None:
    """As `element_spec` gives it; the first dimension may be any."""
    rows: Any = DataLoader(list(torch.zeros(8, 3)), batch_size=4)  # type: ignore[arg-type]
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    form = strategy.experimental_distribute_dataset(rows).element_spec
    assert len(form.specs) == 2
    assert form.is_compatible_with(PerReplica((torch.ones(2, 3), torch.ones(0, 3))))
    for other in (
        torch.ones(2, 3),
        PerReplica((torch.ones(2, 3),) * 3),
        PerReplica((torch.ones(2, 3), torch.ones(2, 4))),
        PerReplica((torch.ones(2, 3), torch.ones(3))),
        PerReplica((torch.ones(2, 3), torch.ones(2, 3, dtype=torch.int64))),
        PerReplica((torch.ones(2, 3), 1.0)),
    ):
        assert not form.is_compatible_with(other)
