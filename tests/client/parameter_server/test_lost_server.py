"""Programs that are run again after a server was started again without what it had."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import ParameterServerStrategy
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.variables.variable import remote_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster
from tests.conftest import TOKEN

Servers = tuple[ParameterServer, ParameterServer]

_LOST = r"needs '0.bias', which /job:ps/task:1 had before it was started again without it"


def server(task: int, **settings: Any) -> ParameterServer:
    return ParameterServer(ServerSettings(task=task, token=TOKEN, **settings))


def cluster_of(servers: Servers, workers: int = 1) -> Cluster:
    return Cluster([one.address for one in servers], workers)


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
        torch.stack([parameter.sum() for parameter in self.model.parameters()]).sum().backward()
        self.optimizer.step()

    def values(self) -> dict[str, Any]:
        self.strategy.refresh()
        return {name: value.tolist() for name, value in self.model.state_dict().items()}


@contextmanager
def trained_and_lost(root: Path) -> Iterator[tuple[Servers, dict[str, Any]]]:
    """Two servers, the second one new, and the values that are saved."""
    with server(0) as kept, server(1) as empty:
        with server(1) as lost, cluster_of((kept, lost)).strategy() as strategy:
            training = Training(strategy)
            training.step()
            strategy.save(root)
            values = training.values()
            training.step()
        yield (kept, empty), values


def test_old_and_new_values_make_no_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with trained_and_lost(tmp_path) as (servers, _):
        for _ in range(2):  # whoever starts it again gets the same answer
            with cluster_of(servers).strategy() as strategy:
                training = Training(strategy)
                for use in (training.step, training.values, lambda: strategy.save(tmp_path / "b")):
                    with pytest.raises(stratagem.FailedPreconditionError, match=_LOST):
                        use()
        assert not (tmp_path / "b").exists()
    assert "1 that a server has lost have none before they are restored" in caplog.text
    assert "others are created" not in caplog.text


def test_a_checkpoint_makes_it_whole(tmp_path: Path) -> None:
    with trained_and_lost(tmp_path) as (servers, values):
        for _ in range(2):
            with cluster_of(servers).strategy() as strategy:
                training = Training(strategy)
                strategy.restore(tmp_path)
                assert training.values() == values
                training.step()
                after = training.values()
        with cluster_of(servers).strategy() as strategy:
            assert Training(strategy).values() == after


def test_a_checkpoint_that_is_damaged_changes_nothing(tmp_path: Path) -> None:
    with trained_and_lost(tmp_path / "good") as (servers, values):
        shutil.copytree(tmp_path / "good", tmp_path / "damaged")
        (part,) = (tmp_path / "damaged").glob("*/part-1.safetensors")
        content = bytearray(part.read_bytes())
        content[-1] ^= 1
        part.write_bytes(content)
        for _ in range(2):  # nor is the next program deceived
            with cluster_of(servers).strategy() as strategy:
                training = Training(strategy)
                with pytest.raises(stratagem.DataLossError):
                    strategy.restore(tmp_path / "damaged")
                with pytest.raises(stratagem.FailedPreconditionError, match=_LOST):
                    training.step()
        with cluster_of(servers).strategy() as strategy:
            training = Training(strategy)
            strategy.restore(tmp_path / "good")
            assert training.values() == values


def test_a_chief_that_is_killed_before_it_has_filled_one_deceives_nobody() -> None:
    with server(0) as first, server(1) as second, server(1) as empty:
        assert counted((first, second), 2) == [1.0, 1.0]
        with cluster_of((first, empty)).strategy() as strategy, strategy.scope():
            _, lost = (stratagem.Variable(0.0) for _ in range(2))
            # This process lives on, so the block has no end.
            unended = filling(strategy, lost)
            unended.__enter__()
        for _ in range(2):
            with pytest.raises(stratagem.FailedPreconditionError, match="started again without"):
                counted((first, empty), 2)
        with cluster_of((first, empty)).strategy() as strategy, strategy.scope():
            _, lost = (stratagem.Variable(0.0) for _ in range(2))
            lost.assign(5.0)
        # The two programs that were refused have counted, too.
        assert counted((first, empty), 2) == [4.0, 6.0]


def filling(
    strategy: ParameterServerStrategy, lost: stratagem.Variable
) -> AbstractContextManager[None]:
    """The block in which a chief fills a variable that a server has lost."""
    extended, variable = strategy.extended, remote_of(lost)
    assert isinstance(extended, ParameterServerExtended)
    assert variable is not None
    return extended._store.filling([variable])


def test_a_checkpoint_that_is_restored_before_the_model_is_made(tmp_path: Path) -> None:
    lost = trained_and_lost(tmp_path)
    with lost as (servers, values), cluster_of(servers).strategy() as strategy:
        strategy.restore(tmp_path, strict=False)
        assert Training(strategy).values() == values


def test_values_that_are_assigned_make_it_whole(tmp_path: Path) -> None:
    with trained_and_lost(tmp_path) as (servers, values):
        with cluster_of(servers).strategy() as strategy:
            training = Training(strategy)
            training.model.load_state_dict({k: torch.tensor(v) for k, v in values.items()})
            assert training.values() == values
            training.step()
        with cluster_of(servers).strategy() as strategy:
            Training(strategy).step()


def test_to_add_to_what_is_lost_is_refused(tmp_path: Path) -> None:
    with server(0) as first, server(1) as second, server(1) as empty:
        assert counted((first, second), 2) == [1.0, 1.0]
        with cluster_of((first, empty)).strategy() as strategy, strategy.scope():
            _, lost = (stratagem.Variable(0.0) for _ in range(2))
            with pytest.raises(stratagem.FailedPreconditionError, match="started again without"):
                lost.assign_add(1.0)
            lost.assign(1.0)
            lost.assign_add(1.0)
            assert lost.numpy() == 2.0


def test_other_workers_wait_for_the_checkpoint(tmp_path: Path) -> None:
    def restored(strategy: ParameterServerStrategy, worker: int) -> dict[str, Any]:
        training = Training(strategy)
        strategy.restore(tmp_path)
        return training.values()

    with trained_and_lost(tmp_path) as (servers, values):
        cluster = cluster_of(servers, workers=2)
        assert cluster.run(restored) == [values] * 2
        with cluster.strategy(1) as worker:
            assert Training(worker).values() == values


def test_what_was_never_trained_may_be_created_again() -> None:
    with server(0) as kept, server(1) as empty:
        with server(1) as lost, cluster_of((kept, lost)).strategy() as strategy:
            Training(strategy)
        for _ in range(2):
            with cluster_of((kept, empty)).strategy() as strategy:
                Training(strategy).step()


def counted(servers: Servers, number: int) -> list[float]:
    """What so many counters have once each was added to."""
    with cluster_of(servers).strategy() as strategy:
        with strategy.scope():
            counters = [stratagem.Variable(0.0) for _ in range(number)]
        for counter in counters:
            counter.assign_add(1.0)
        return [float(counter.numpy()) for counter in counters]


def test_a_program_may_have_more_variables_than_the_one_before() -> None:
    with server(0) as first, server(1) as second, server(1) as empty:
        assert counted((first, second), 1) == [1.0]
        assert counted((first, second), 3) == [2.0, 1.0, 1.0]
        with pytest.raises(stratagem.FailedPreconditionError, match="started again without"):
            counted((first, empty), 3)


def test_a_server_with_a_log_has_lost_nothing(tmp_path: Path) -> None:
    kept = {"durability": "log", "durability_folder": str(tmp_path)}
    with server(0) as first:
        for runs in (1.0, 2.0):
            with server(1, **kept) as second:
                assert counted((first, second), 3) == [runs] * 3


def test_servers_with_variables_of_different_trainings_are_refused(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        servers = server(0), server(1)
        with servers[0], servers[1], cluster_of(servers).strategy() as strategy:
            Training(strategy).step()
            strategy.save(tmp_path / name)
    first = server(0, restore=str(tmp_path / "ours"))
    second = server(1, restore=str(tmp_path / "theirs"))
    refused = pytest.raises(stratagem.AttachmentError, match=r"ps/task:1 have .* different train")
    with first, second, cluster_of((first, second)).strategy() as strategy, refused:
        Training(strategy)
