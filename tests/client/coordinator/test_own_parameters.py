"""What the program of a coordinator sees of the parameters that functions train."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from stratagem import DistributedOptimizer
from stratagem.coordinator import ClusterCoordinator, RemoteValue
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.waiting import eventually

go_on = threading.Event()


def _joined(coordinator: ClusterCoordinator, value: RemoteValue) -> None:
    coordinator.join()


def _seen_to_be_done(coordinator: ClusterCoordinator, value: RemoteValue) -> None:
    eventually(coordinator.done)


def _fetched(coordinator: ClusterCoordinator, value: RemoteValue) -> None:
    coordinator.fetch(value)


@pytest.mark.parametrize("ended", [_joined, _seen_to_be_done, _fetched])
def test_plain_code_evaluates_what_functions_have_trained(
    ended: Callable[[ClusterCoordinator, RemoteValue], None],
) -> None:
    with coordinating(num_workers=2) as here:
        model, step = _trained(here)
        for count in (1, 2, 3):
            ended(here.coordinator, here.coordinator.schedule(step))
            assert model.weight.item() == 4 - count
            assert model(torch.ones(1, 1)).item() == 4 - count


def test_a_value_that_is_not_the_last_one_reads_no_parameters() -> None:
    with coordinating(num_workers=2) as here:
        model, step = _trained(here)
        go_on.clear()
        waiting = here.coordinator.schedule(_wait)
        here.coordinator.schedule(step).get()
        assert model.weight.item() == 4
        go_on.set()
        waiting.get()
        assert model.weight.item() == 3


def test_parameters_are_read_once_for_all_values() -> None:
    with coordinating(num_workers=2) as here:
        model, step = _trained(here)
        values = [here.coordinator.schedule(step) for _ in range(4)]
        here.coordinator.join()
        sent = here.strategy.traffic().sent_bytes
        for value in values:
            value.get()
        here.coordinator.join()
        assert here.strategy.traffic().sent_bytes == sent
        assert model.weight.item() == 0


def _trained(here: Coordination) -> tuple[nn.Linear, Callable[[], None]]:
    with here.strategy.scope():
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, 4.0)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()

    return model, step


def _wait() -> None:
    assert go_on.wait(60)
