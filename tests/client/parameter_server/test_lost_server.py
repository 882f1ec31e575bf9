"""Programs that are run again after a server was started again without what it had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import ParameterServerStrategy
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster
from tests.conftest import TOKEN

_LOST = r"needs '0.bias', which /job:ps/task:1 had before it was started again without it"


def server(task: int, **settings: Any) -> ParameterServer:
    return ParameterServer(ServerSettings(task=task, token=TOKEN, **settings))


class Training:
    """A model whose three parameters take turns on two servers, and an optimizer with slots."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1, bias=False))
        parameters = list(self.model.parameters())
        adam = torch.optim.Adam(parameters, lr=0.5)
        self.optimizer = stratagem.DistributedOptimizer(adam)

    def step(self) -> None:
        self.optimizer.zero_grad()
        sum(parameter.sum() for parameter in self.model.parameters()).backward()
        self.optimizer.step()

    def values(self) -> dict[str, Any]:
        self.strategy.refresh()
        return {name: value.tolist() for name, value in self.model.state_dict().items()}


@contextmanager
def trained_and_lost(root: Path) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
    """The addresses of two servers, the second one new, and the values that are saved."""
    with server(0) as kept:
        with server(1) as lost:
            with Cluster([kept.address, lost.address], 1).strategy() as strategy:
                training = Training(strategy)
                training.step()
                strategy.save(root)
                values = training.values()
                training.step()
        with server(1) as empty:
            yield [kept.address, empty.address], values


def test_old_and_new_values_make_no_model(tmp_path: Path) -> None:
    with trained_and_lost(tmp_path) as (addresses, _):
        for _ in range(2):  # whoever starts it again gets the same answer
            with Cluster(addresses, 1).strategy() as strategy:
                training = Training(strategy)
                for use in (training.step, training.values, lambda: strategy.save(tmp_path / "b")):
                    with pytest.raises(stratagem.FailedPreconditionError, match=_LOST):
                        use()
        assert not (tmp_path / "b").exists()


def test_a_checkpoint_makes_it_whole(tmp_path: Path) -> None:
    with trained_and_lost(tmp_path) as (addresses, values):
        for _ in range(2):
            with Cluster(addresses, 1).strategy() as strategy:
                training = Training(strategy)
                strategy.restore(tmp_path)
                assert training.values() == values
                training.step()
                after = training.values()
        with Cluster(addresses, 1).strategy() as strategy:
            assert Training(strategy).values() == after


def test_a_checkpoint_that_is_restored_before_the_model_is_made(tmp_path: Path) -> None:
    with trained_and_lost(tmp_path) as (addresses, values):
        with Cluster(addresses, 1).strategy() as strategy:
            strategy.restore(tmp_path, strict=False)
            assert Training(strategy).values() == values


def test_other_workers_wait_for_the_checkpoint(tmp_path: Path) -> None:
    def restored(strategy: ParameterServerStrategy, worker: int) -> dict[str, Any]:
        training = Training(strategy)
        strategy.restore(tmp_path)
        return training.values()

    with trained_and_lost(tmp_path) as (addresses, values):
        assert Cluster(addresses, 2).run(restored) == [values] * 2
        with Cluster(addresses, 2).strategy(1) as worker:
            assert Training(worker).values() == values


def test_what_was_never_trained_may_be_created_again() -> None:
    with server(0) as kept, server(1) as lost, server(1) as empty:
        with Cluster([kept.address, lost.address], 1).strategy() as strategy:
            Training(strategy)
        with Cluster([kept.address, empty.address], 1).strategy() as strategy:
            training = Training(strategy)
            training.step()
        with Cluster([kept.address, empty.address], 1).strategy() as strategy:
            Training(strategy).step()


def test_a_program_may_have_more_variables_than_the_one_before() -> None:
    def count(addresses: Sequence[str], number: int) -> list[float]:
        with Cluster(addresses, 1).strategy() as strategy:
            with strategy.scope():
                counters = [stratagem.Variable(0.0) for _ in range(number)]
            for counter in counters:
                counter.assign_add(1.0)
            return [float(counter.numpy()) for counter in counters]

    with server(0) as first, server(1) as second:
        addresses = [first.address, second.address]
        assert count(addresses, 1) == [1.0]
        assert count(addresses, 3) == [2.0, 1.0, 1.0]
        with server(1) as empty:
            with pytest.raises(stratagem.FailedPreconditionError, match="started again without"):
                count([first.address, empty.address], 3)


def test_a_server_with_a_log_has_lost_nothing(tmp_path: Path) -> None:
    kept = {"durability": "log", "durability_folder": str(tmp_path)}
    with server(0) as first:
        values = []
        for _ in range(2):
            with server(1, **kept) as second:
                with Cluster([first.address, second.address], 1).strategy() as strategy:
                    training = Training(strategy)
                    values.append(training.values())
                    training.step()
    assert values[0] != values[1]


def test_servers_with_variables_of_different_trainings_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with server(0) as first, server(1) as second:
            with Cluster([first.address, second.address], 1).strategy() as strategy:
                training = Training(strategy)
                training.step()
                strategy.save(tmp_path / name)
    ours, theirs = (str(tmp_path / name) for name in ("a", "b"))
    with server(0, restore=ours) as first, server(1, restore=theirs) as second:
        with Cluster([first.address, second.address], 1).strategy() as strategy:
            with pytest.raises(stratagem.AttachmentError, match="task:1 have .* different trai"):
                Training(strategy)
