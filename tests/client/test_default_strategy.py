"""The strategy that is in charge where the user chose none."""

from __future__ import annotations

import pytest
import torch

import stratagem


@pytest.fixture
def default() -> stratagem.Strategy:
    return stratagem.get_strategy()


def test_run_calls_the_function_once_in_a_replica_of_its_own(
    default: stratagem.Strategy,
) -> None:
    """CTX-6, DEF-2: a new context, not the singleton; result unchanged."""
    outer, result = stratagem.get_replica_context(), object()

    def fn(a: int, b: int) -> object:
        inner = stratagem.get_replica_context()
        assert inner is not None
        assert inner is not outer
        assert inner.strategy is default
        assert isinstance(inner.replica_id_in_sync_group, torch.Tensor)
        assert not stratagem.has_strategy()
        assert (a, b) == (1, 2)
        return result

    assert default.run(fn, (1,), {"b": 2}) is result


def test_reducing_and_gathering_return_the_value(default: stratagem.Strategy) -> None:
    """DEF-3, DEF-8, DEF-11, RED-24: plain numbers and structures too."""
    value = {"a": 3, "b": torch.ones(2)}
    for op in ("sum", "mean"):
        assert default.reduce(op, value, axis=None) is value
        assert default.extended.reduce_to(op, value, "CPU:0") is value
    assert default.gather(value, axis=0) is value
    assert default.experimental_local_results(value) == (value,)


def test_an_axis_is_reduced_all_the_same(default: stratagem.Strategy) -> None:
    """RED-8, RED-9 with one replica."""
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert default.reduce("sum", value, axis=0).tolist() == [4.0, 6.0]
    assert default.reduce("mean", value, axis=(0, 1)) == 2.5


def test_update_calls_the_function_with_the_variable(
    default: stratagem.Strategy,
) -> None:
    """DEF-9: `group=False` wraps leaves in 1-tuples."""
    variable = stratagem.Variable(1.0)
    added = variable.assign_add
    update = default.extended.update
    assert update(variable, lambda v, x: v is variable and x, (5,)) == 5
    assert update(variable, lambda v: {"a": 1}, group=False) == {"a": (1,)}
    update(variable, lambda v: added(2.0))
    assert variable.numpy() == 3.0


def test_non_slot_variables_live_beside_the_first_one_by_name(
    default: stratagem.Strategy,
) -> None:
    """EXT-7: the variable with the smallest name; empty list → ValueError."""
    b, a = stratagem.Variable(1.0, name="b"), stratagem.Variable(1.0, name="a")
    place = default.extended.non_slot_devices([b, a])
    assert place is a
    assert default.extended.update_non_slot(place, lambda x: x + 1, (1,)) == 2
    with pytest.raises(ValueError, match="empty"):
        default.extended.non_slot_devices([])


@pytest.mark.parametrize("devices", ["worker_devices", "parameter_devices"])
def test_there_are_no_devices_to_speak_of(
    default: stratagem.Strategy, devices: str
) -> None:
    """DEF-10: RuntimeError “unsupported”."""
    with pytest.raises(RuntimeError, match="unsupported"):
        getattr(default.extended, devices)


def test_it_owns_the_variables_that_no_strategy_made(
    default: stratagem.Strategy,
) -> None:
    """EXT-9: DEF: iff none is recorded."""
    assert default.extended.variable_created_in_scope(stratagem.Variable(1.0))


def test_it_says_what_it_is(default: stratagem.Strategy) -> None:
    """STR-3, STR-4, EXT-13, EXT-16, EXT-17."""
    assert default.num_replicas_in_sync == 1
    assert default.cluster_resolver is None
    extended = default.extended
    assert not extended.experimental_require_static_shapes
    assert extended.should_checkpoint
    assert extended.should_save_summary
    with pytest.raises(NotImplementedError, match="must be implemented in descendants"):
        _ = extended.experimental_between_graph
