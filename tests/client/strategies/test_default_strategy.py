"""The default strategy as one strategy among others."""

from __future__ import annotations

import pytest
import torch

import stratagem


@pytest.fixture
def default() -> stratagem.Strategy:
    return stratagem.get_strategy()


def test_an_axis_is_reduced_all_the_same(default: stratagem.Strategy) -> None:
    """RED-8, RED-9 with one replica."""
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert default.reduce("sum", value, axis=0).tolist() == [4.0, 6.0]
    assert default.reduce("mean", value, axis=(0, 1)) == 2.5


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
