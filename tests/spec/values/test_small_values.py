"""Enumerations and the small values of the API."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

import stratagem


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


@pytest.mark.spec("ENU-10")
def test_run_options_keep_replicas_apart_by_default() -> None:
    assert stratagem.RunOptions() == (True, False, None, False)


@pytest.mark.spec("ENU-14")
def test_a_value_context_tells_which_replica_it_is() -> None:
    context = stratagem.ValueContext(1, 2)
    assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (1, 2)
    assert str(context) == ("tf.distribute.ValueContext(replica id 1,  total replicas in sync: 2)")
    with pytest.raises(AttributeError):
        context.num_replicas_in_sync = 2  # type: ignore[misc]


def values(enumeration: type[Enum]) -> dict[str, Any]:
    return {member.name: member.value for member in enumeration}
