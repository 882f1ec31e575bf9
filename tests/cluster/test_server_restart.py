"""Servers that are killed and go on from the last checkpoint."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

import stratagem
from stratagem import ParameterServerStrategy, Variable
from stratagem_deploy.processes.resources import ReservedAddresses
from tests.checkpoints import load_from
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.psserver.process import ServerProcess, serving

pytestmark = pytest.mark.long


class Servers:
    """Two processes that begin with the latest checkpoint of a folder."""

    def __init__(self, folder: Path, stack: ExitStack, num_workers: int = 1) -> None:
        self.root = folder / "run"
        self._folder, self._stack = folder, stack
        self._token = folder / "token"
        self._token.write_text(TOKEN)
        self._token.chmod(0o600)
        self._places = stack.enter_context(ReservedAddresses(2)).replicas
        self._running = [*map(self._start, range(2))]
        self.cluster = Cluster(self._places, num_workers)

    def _start(self, task: int) -> ServerProcess:
        folder = self._folder / f"{task} {len(list(self._folder.iterdir()))}"
        folder.mkdir()
        options = ["--token-file", self._token, "--restore", self.root]
        arguments = map(str, [*options, "--bind", self._places[task], "--task", task])
        return self._stack.enter_context(serving(folder, *arguments))

    def kill(self, task: int) -> None:
        self._running[task].send(signal.SIGKILL)
        self._running[task].exit_code()

    def restart(self, task: int) -> None:
        self.kill(task)
        self._running[task] = self._start(task)


def counters(strategy: ParameterServerStrategy) -> list[Variable]:
    with strategy.scope():
        return [Variable(0.0, name=f"on{server}") for server in range(2)]


def values(variables: list[Variable]) -> list[float]:
    return [float(variable.numpy()) for variable in variables]


def test_a_killed_server_goes_on_from_the_checkpoint_and_so_do_its_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack)
        strategy = stack.enter_context(servers.cluster.strategy())
        mine = counters(strategy)

        def step() -> None:
            for counter in mine:
                counter.assign_add(1.0)

        for _ in range(3):
            strategy.run(step)
        strategy.save(servers.root)
        for _ in range(4):
            strategy.run(step)
        assert values(mine) == [7.0, 7.0]
        servers.restart(1)
        # What it applied after the checkpoint is lost, and nothing else.
        assert values(mine) == [7.0, 3.0]
        strategy.run(step)
        assert values(mine) == [8.0, 4.0]
        assert "/job:ps/task:1" in caplog.text
        assert "went back to its last checkpoint" in caplog.text
        strategy.save(servers.root)


def test_a_killed_server_has_the_state_of_its_optimizers(tmp_path: Path) -> None:
    start = torch.tensor([1.0, 2.0])
    plain = torch.nn.Parameter(start.clone())
    adam = torch.optim.Adam([plain], lr=0.1)
    for _ in range(3):
        plain.grad = torch.ones(2)
        adam.step()
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack)
        strategy = stack.enter_context(servers.cluster.strategy())
        with strategy.scope():
            module = torch.nn.ParameterList([start.clone()])
        optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))

        def step() -> None:
            module[0].grad = torch.ones(2)
            optimizer.step()

        strategy.run(step)
        strategy.save(servers.root)
        servers.restart(0)
        strategy.run(step)
        strategy.run(step)
        strategy.refresh()
        assert torch.equal(module[0], plain)


def test_a_killed_server_has_the_rows_of_its_tables(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack)
        strategy = stack.enter_context(servers.cluster.strategy())
        with strategy.scope():
            tables = torch.nn.ModuleList(
                [stratagem.nn.DynamicEmbedding(2, admit_after=2) for _ in range(2)]
                + [stratagem.nn.Embedding(9, 2)]
            )
        optimizer = stratagem.DistributedOptimizer(
            torch.optim.SparseAdam(tables.parameters(), lr=0.1)
        )

        def step(first: int) -> None:
            optimizer.zero_grad()
            places = torch.arange(first, first + 4)
            sum(table(places).square().sum() for table in tables).backward()
            optimizer.step()

        def rows() -> torch.Tensor:
            return torch.stack([table(torch.arange(9)).detach() for table in tables])

        for first in (0, 2, 3):
            strategy.run(step, args=(first,))
        saved = rows()
        strategy.save(servers.root)
        strategy.run(step, args=(4,))
        expected = rows()
        servers.restart(0)
        servers.restart(1)
        assert torch.equal(rows(), saved)
        strategy.run(step, args=(4,))
        assert torch.equal(rows(), expected)


def test_workers_that_step_together_are_told_that_a_server_went_back(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack)
        strategy = servers.cluster.strategy(consistency="sync")
        stack.enter_context(strategy)
        mine = counters(strategy)
        strategy.save(servers.root)
        servers.restart(1)
        with pytest.raises(stratagem.SessionLostError, match="was restarted"):
            mine[1].assign_add(1.0)


def test_a_program_that_starts_again_finds_what_servers_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack)
        with servers.cluster.strategy() as strategy:
            mine = counters(strategy)
            mine[1].assign(5.0)
            strategy.save(servers.root)
        servers.restart(0)
        servers.restart(1)
        with servers.cluster.strategy() as strategy:
            assert values(counters(strategy)) == [0.0, 5.0]


def test_a_crash_while_saving_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack)
        strategy = stack.enter_context(servers.cluster.strategy(connect_seconds=60))
        with strategy.scope():
            table = Variable(torch.zeros(4 << 20), name="table")
        strategy.save(servers.root)
        table.assign_add(torch.ones(4 << 20))
        written = strategy.save(servers.root, wait=False)
        servers.restart(0)
        written.exception(timeout=100)  # it may have been in time
        state = load_from(servers.root)["table"]
        assert state.unique().numel() == 1
        assert np.unique(table.numpy()).size == 1
        strategy.save(servers.root)
        names = [path.name for path in servers.root.iterdir()]
        assert len(names) == 2
        assert "latest" in names


def test_a_worker_that_comes_late_passes_what_others_passed_before_the_checkpoint(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack, num_workers=2)
        chief, other = (servers.cluster.strategy(worker) for worker in range(2))
        stack.enter_context(chief)
        mine = counters(chief)
        with other, ThreadPoolExecutor(2) as threads:
            counters(other)
            passing = [threads.submit(each.barrier) for each in (chief, other)]
            assert [one.result(60) for one in passing] == [None, None]
        chief.save(servers.root)
        servers.restart(0)
        assert values(mine) == [0.0, 0.0]  # the chief is back there
        with servers.cluster.strategy(1) as again:
            counters(again)
            again.barrier(timeout=20)


def test_a_worker_that_comes_late_learns_that_a_checkpoint_was_restored(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack, num_workers=2)
        chief = stack.enter_context(servers.cluster.strategy())
        mine = counters(chief)
        first = tmp_path / "first"
        chief.save(first)
        chief.restore(first)
        chief.save(servers.root)
        servers.restart(0)
        assert values(mine) == [0.0, 0.0]  # the chief is back there
        with servers.cluster.strategy(1, peer_seconds=20) as other:
            counters(other)
            other.restore(first)
