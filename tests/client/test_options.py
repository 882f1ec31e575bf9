"""Enumerations and the small values of the API."""

from __future__ import annotations

import pytest

from stratagem import (
    CommunicationOptions,
    InputContext,
    ReduceOp,
    RunOptions,
    ValueContext,
    VariableAggregation,
    VariableSynchronization,
)


def test_enumerations_have_the_values_of_tensorflow() -> None:
    """ENU-1, ENU-3, ENU-4."""
    assert {op.name: op.value for op in ReduceOp} == {"SUM": "SUM", "MEAN": "MEAN"}
    assert [(a.name, a.value) for a in VariableAggregation] == [
        ("NONE", 0),
        ("SUM", 1),
        ("MEAN", 2),
        ("ONLY_FIRST_REPLICA", 3),
    ]
    assert [(s.name, s.value) for s in VariableSynchronization] == [
        ("AUTO", 0),
        ("NONE", 1),
        ("ON_WRITE", 2),
        ("ON_READ", 3),
    ]


def test_communication_options_merge_by_field() -> None:
    """ENU-8: the other's non-default fields win."""
    ours = CommunicationOptions(bytes_per_pack=4, timeout_seconds=2.0)
    merged = ours.merge(CommunicationOptions(8, implementation="nccl"))
    assert merged == CommunicationOptions(8, 2.0, "NCCL")
    assert ours.merge(None) == ours


def test_communication_options_are_checked() -> None:
    """ENU-8: `bytes_per_pack<0` → ValueError “must be >=0”."""
    with pytest.raises(ValueError, match="must be >=0"):
        CommunicationOptions(bytes_per_pack=-1)
    for implementation in ("gloo", 3):
        with pytest.raises(ValueError, match="AUTO, RING, NCCL"):
            CommunicationOptions(implementation=implementation)  # type: ignore[arg-type]


def test_run_options_keep_replicas_apart_by_default() -> None:
    """ENU-10."""
    assert RunOptions() == (True, False, None, False)


def test_an_input_context_divides_a_global_batch() -> None:
    """ENU-12, ENU-13: 12/6=2; 13 → ValueError."""
    context = InputContext(2, 1, 6)
    assert context.get_per_replica_batch_size(12) == 2
    with pytest.raises(ValueError, match="13 is not divisible by the 6"):
        context.get_per_replica_batch_size(13)
    assert str(context) == ("tf.distribute.InputContext(input pipeline id 1, total: 2)")


def test_contexts_cannot_be_changed() -> None:
    """ENU-12, ENU-14: read-only properties."""
    for context in (InputContext(), ValueContext()):
        with pytest.raises(AttributeError):
            context.num_replicas_in_sync = 2  # type: ignore[misc]
    assert str(ValueContext(1, 2)) == (
        "tf.distribute.ValueContext(replica id 1,  total replicas in sync: 2)"
    )
