"""Enumerations and the small values of the API."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

import stratagem


@pytest.mark.spec("ENU-1")
def test_there_are_two_reductions() -> None:
    assert values(stratagem.ReduceOp) == {"SUM": "SUM", "MEAN": "MEAN"}


@pytest.mark.spec("ENU-2")
def test_two_aggregations_are_reductions() -> None:
    convert = stratagem.ReduceOp.from_variable_aggregation
    aggregations = stratagem.VariableAggregation
    assert convert(aggregations.SUM) is stratagem.ReduceOp.SUM
    assert convert(aggregations.MEAN) is stratagem.ReduceOp.MEAN
    for other in (aggregations.NONE, aggregations.ONLY_FIRST_REPLICA):
        with pytest.raises(ValueError, match=f"Could not convert from .*{other.name}"):
            convert(other)


@pytest.mark.spec("ENU-3")
def test_aggregations_have_the_numbers_of_tensorflow() -> None:
    assert values(stratagem.VariableAggregation) == {
        "NONE": 0,
        "SUM": 1,
        "MEAN": 2,
        "ONLY_FIRST_REPLICA": 3,
    }


@pytest.mark.spec("ENU-4")
def test_synchronizations_have_the_numbers_of_tensorflow() -> None:
    assert values(stratagem.VariableSynchronization) == {
        "AUTO": 0,
        "NONE": 1,
        "ON_WRITE": 2,
        "ON_READ": 3,
    }


@pytest.mark.spec("ENU-5")
def test_an_input_function_serves_a_worker_or_a_replica() -> None:
    assert values(stratagem.InputReplicationMode).keys() == {
        "PER_WORKER",
        "PER_REPLICA",
    }


@pytest.mark.spec("ENU-9")
def test_a_remote_value_is_there_or_not_or_never() -> None:
    statuses = values(stratagem.coordinator.RemoteValueStatus)
    assert statuses == {name: name for name in ("NOT_READY", "ABORTED", "READY")}


@pytest.mark.spec("ENU-7")
def test_collective_communication_has_implementations() -> None:
    implementations = values(stratagem.CommunicationImplementation)
    assert implementations == {"AUTO": "AUTO", "RING": "RING", "NCCL": "NCCL"}


@pytest.mark.spec("ENU-8")
def test_communication_options_merge_by_field() -> None:
    ours = stratagem.CommunicationOptions(bytes_per_pack=4, timeout_seconds=2.0)
    merged = ours.merge(stratagem.CommunicationOptions(8, implementation="nccl"))
    nccl = stratagem.CommunicationImplementation.NCCL
    assert merged == stratagem.CommunicationOptions(8, 2.0, nccl)
    assert ours.merge(None) == ours


@pytest.mark.spec("ENU-8")
def test_communication_options_are_checked() -> None:
    with pytest.raises(ValueError, match="must be >=0"):
        stratagem.CommunicationOptions(bytes_per_pack=-1)
    wrong: list[Any] = ["gloo", 3]
    for implementation in wrong:
        with pytest.raises(ValueError, match="AUTO, RING, NCCL"):
            stratagem.CommunicationOptions(implementation=implementation)


@pytest.mark.spec("ENU-10")
def test_run_options_keep_replicas_apart_by_default() -> None:
    assert stratagem.RunOptions() == (True, False, None, False)


@pytest.mark.spec("ENU-12", "ENU-13")
def test_an_input_context_divides_a_global_batch() -> None:
    context = stratagem.InputContext(2, 1, 6)
    assert context.get_per_replica_batch_size(12) == 2
    with pytest.raises(ValueError, match="13 is not divisible by the 6"):
        context.get_per_replica_batch_size(13)


@pytest.mark.spec("ENU-12")
def test_an_input_context_tells_which_pipeline_it_is() -> None:
    context = stratagem.InputContext(2, 1, 6)
    assert str(context) == "tf.distribute.InputContext(input pipeline id 1, total: 2)"
    assert (context.num_input_pipelines, context.num_replicas_in_sync) == (2, 6)
    with pytest.raises(AttributeError):
        context.num_replicas_in_sync = 2  # type: ignore[misc]


@pytest.mark.spec("ENU-14")
def test_a_value_context_tells_which_replica_it_is() -> None:
    context = stratagem.ValueContext(1, 2)
    assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (1, 2)
    assert str(context) == ("tf.distribute.ValueContext(replica id 1,  total replicas in sync: 2)")
    with pytest.raises(AttributeError):
        context.num_replicas_in_sync = 2  # type: ignore[misc]


def values(enumeration: type[Enum]) -> dict[str, Any]:
    return {member.name: member.value for member in enumeration}
