"""What scheduled functions return."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import stratagem
from stratagem.coordinator import ClusterCoordinator, RemoteValueStatus
from tests.client.coordinator.coordination import coordinating
from tests.client.coordinator.here import Gate, Journal
from tests.waiting import eventually


@pytest.mark.spec("RMV-1")
def test_fetch_gives_arrays(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(lambda: (torch.ones(2), {"a": torch.tensor(3)}, None))
    array, nest, nothing = value.fetch()
    assert type(array) is np.ndarray
    assert array.tolist() == [1, 1]
    assert type(nest["a"]) is np.int64
    assert nest == {"a": 3}
    assert nothing is None


@pytest.mark.spec("RMV-1")
def test_fetch_widens_what_arrays_cannot_have(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(lambda: torch.tensor([0.5, -3.0]).bfloat16())
    array = value.fetch()
    assert (array.dtype, array.tolist()) == (np.float32, [0.5, -3.0])
    assert value.get().dtype is torch.bfloat16


@pytest.mark.spec("RMV-2")
def test_get_gives_tensors(coordinator: ClusterCoordinator) -> None:
    leaf = torch.ones(2, requires_grad=True)
    value = coordinator.schedule(lambda: [leaf * 2, "text"])
    tensor, text = value.get()
    assert tensor.tolist() == [2, 2]
    assert not tensor.requires_grad
    assert text == "text"


@pytest.mark.spec("RMV-2")
def test_values_of_replicas_come_as_tuples(coordinator: ClusterCoordinator) -> None:
    parts = stratagem.PerReplica([torch.zeros(1), torch.ones(1)])
    value = coordinator.schedule(lambda: parts)
    assert [part.tolist() for part in value.get()] == [[0], [1]]
    assert [part.tolist() for part in value.fetch()] == [[0], [1]]


def halved(parts: list[Any]) -> None:
    parts[0].div_(2)
    parts[1]["array"] /= 2
    parts.append("more")


def as_numbers(parts: list[Any]) -> list[Any]:
    tensor, arrays = parts
    return [tensor.tolist(), arrays["array"].tolist()]


@pytest.mark.spec("RMV-3")
@pytest.mark.parametrize("trust_workers", [False, True])
def test_a_function_changes_no_value_of_others(trust_workers: bool) -> None:
    def made() -> list[Any]:
        return [torch.full((2,), 4.0), {"array": np.full(2, 4.0)}]

    with coordinating(num_workers=1, trust_workers=trust_workers) as coordination:
        coordinator = coordination.coordinator
        value = coordinator.schedule(made)
        coordinator.schedule(halved, args=(value,))
        seen = coordinator.schedule(as_numbers, args=(value,))
        assert seen.fetch() == as_numbers(value.get()) == [[4, 4], [4, 4]]


@pytest.mark.spec("RMV-3")
def test_a_function_that_is_given_a_value_twice_has_it_once(
    coordinator: ClusterCoordinator,
) -> None:
    def are_one(first: Any, second: Any) -> bool:
        return first is second

    value = coordinator.schedule(lambda: [torch.ones(2)])
    assert coordinator.schedule(are_one, args=(value, value)).fetch()


@pytest.mark.spec("RMV-3")
def test_a_value_stays_as_its_function_returned_it(coordinator: ClusterCoordinator) -> None:
    journal = Journal()

    def made() -> Any:
        journal.write(torch.ones(2))
        return journal.entries[0]

    def change(value: torch.Tensor) -> list[float]:
        journal.entries[0].mul_(2)
        return value.tolist()

    value = coordinator.schedule(made)
    assert coordinator.schedule(change, args=(value,)).fetch() == [1, 1]
    assert value.get().tolist() == [1, 1]


@pytest.mark.spec("RMV-4")
def test_a_value_is_ready_when_its_function_has_ended(
    coordinator: ClusterCoordinator,
) -> None:
    gate = Gate()
    value = coordinator.schedule(gate.pass_through)
    before = value.status
    gate.open()
    coordinator.join()
    assert (before, value.status) == (
        RemoteValueStatus.NOT_READY,
        RemoteValueStatus.READY,
    )


@pytest.mark.spec("RMV-4")
def test_a_value_is_aborted_with_its_coordinator() -> None:
    gate = Gate()
    with coordinating(num_workers=1) as coordination:
        value = coordination.coordinator.schedule(gate.pass_through)
        coordination.coordinator._dispatch.close()
        eventually(lambda: value.status is RemoteValueStatus.ABORTED)
        with pytest.raises(stratagem.CancelledError, match=r"aborted\. Please resched"):
            value.fetch()
        gate.open()


@pytest.mark.spec("RMV-5")
def test_a_function_runs_though_nobody_has_its_value(
    coordinator: ClusterCoordinator,
) -> None:
    journal = Journal()
    dropped = weakref.ref(coordinator.schedule(journal.write, args=("ran",)))
    gc.collect()
    assert dropped() is None
    coordinator.join()
    assert journal.entries == ["ran"]
