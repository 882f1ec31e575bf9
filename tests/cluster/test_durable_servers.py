"""Servers that are killed and go on from their logs, as if nothing had happened."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import stratagem
from stratagem import Variable
from stratagem_deploy.processes.addresses import ReservedAddresses
from tests.client.clusters import Cluster
from tests.cluster.interventions import beside
from tests.conftest import TOKEN
from tests.psserver.process import ServerProcess, serving

pytestmark = pytest.mark.cluster


class Servers:
    """Two processes with a log each."""

    def __init__(self, folder: Path, stack: ExitStack, num_workers: int = 1) -> None:
        self._folder, self._stack = folder, stack
        self._token = folder / "token"
        self._token.write_text(TOKEN)
        self._token.chmod(0o600)
        self.logs = folder / "logs"
        self.logs.mkdir()
        self._places = stack.enter_context(ReservedAddresses(2)).replicas
        self._running = [*map(self._start, range(2))]
        self.cluster = Cluster(self._places, num_workers)

    def _start(self, task: int) -> ServerProcess:
        folder = self._folder / f"{task} {len(list(self._folder.iterdir()))}"
        folder.mkdir()
        options = ["--durability", "log", "--durability-folder", self.logs]
        place = ["--bind", self._places[task], "--task", task]
        arguments = ["--token-file", self._token, *place, *options]
        return self._stack.enter_context(serving(folder, *map(str, arguments)))

    def restart(self, task: int) -> None:
        self._running[task].popen.send_signal(signal.SIGKILL)
        self._running[task].popen.wait()
        self._running[task] = self._start(task)


def test_a_program_goes_on_with_a_killed_server_and_is_not_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack)
        strategy = stack.enter_context(servers.cluster.strategy())
        with strategy.scope():
            counters = [Variable(0.0, name=f"on{server}") for server in range(2)]

        def step() -> None:
            for counter in counters:
                counter.assign_add(1.0)

        for _ in range(5):
            strategy.run(step)
        steps = 5
        with beside(lambda: servers.restart(1)) as killing:
            while killing.is_alive():
                strategy.run(step)
                steps += 1
        strategy.run(step)
        assert [float(one.numpy()) for one in counters] == [steps + 1.0] * 2
        assert "checkpoint" not in caplog.text


def test_optimizers_go_on_with_the_bits_that_they_had(tmp_path: Path) -> None:
    start = torch.tensor([1.0, 2.0])
    plain = torch.nn.Parameter(start.clone())
    adam = torch.optim.Adam([plain], lr=0.1)
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack)
        strategy = stack.enter_context(servers.cluster.strategy())
        with strategy.scope():
            module = torch.nn.ParameterList([start.clone()])
        optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))

        def step(gradient: float) -> None:
            module[0].grad = torch.full((2,), gradient)
            optimizer.step()

        for number in range(6):
            plain.grad = torch.full((2,), float(number))
            adam.step()
            strategy.run(step, (float(number),))
            if number % 2:
                servers.restart(0)
        strategy.refresh()
        assert torch.equal(module[0], plain)
