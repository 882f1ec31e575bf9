"""Reader servers behind a cluster that trains: what they answer while processes are killed."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import stratagem
from stratagem import ParameterServerStrategy, Reader
from stratagem.nn import Embedding
from stratagem_deploy import LocalCluster
from stratagem_deploy.cli import app
from tests.deploy.processes.process_tree import python
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_SECONDS = 60.0
ROWS = 64


class Counter(nn.Module):
    """All of its numbers are that of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Embedding(ROWS, 2)
        self.dense = nn.Linear(2, 2, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.table(rows).sum() + self.dense.weight.sum()
        return total


class Training:
    """Adds one to all numbers in each step, and publishes, until it is closed."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy, self._stop = strategy, threading.Event()
        with strategy.scope():
            self._model = Counter()
            for parameter in self._model.parameters():
                nn.init.zeros_(parameter)
        self._optimizer = stratagem.DistributedOptimizer(
            torch.optim.SGD(self._model.parameters(), lr=1.0)
        )
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self) -> None:
        try:
            with self._strategy.publish_every(seconds=0.05):
                while not self._stop.wait(0.01):
                    self._strategy.run(self._step)
        except BaseException as error:
            self.errors.append(error)

    def _step(self) -> None:
        self._optimizer.zero_grad()
        (-self._model(torch.arange(ROWS))).backward()
        self._optimizer.step()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive()
        assert not self.errors


@contextmanager
def serve(
    folder: Path, number: int, source: str, token: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    ready, secret = folder / f"ready-{number}", folder / "token"
    secret.write_text(token)
    files = ("--ready-file", str(ready), "--token-file", str(secret))
    command = ("-m", "stratagem_deploy.cli", "serve", "--from", source, *files)
    with python(*command, "--task", str(number), output=subprocess.DEVNULL) as process:
        eventually(ready.exists)
        yield json.loads(ready.read_text())["address"], process


class Looks:
    """Reads at one server again and again, and checks each look."""

    def __init__(self, address: str, token: str) -> None:
        self.reader = Reader(f"serve://{address}", token=token, timeout=_SECONDS)
        self.model = self.reader.module(Counter)
        self.version, self.step = 0, 0.0

    def look(self) -> float:
        """All numbers are of one step, which is no earlier one than before."""
        with self.reader.pin() as version:
            rows = self.model.table(torch.arange(ROWS))
            dense = self.model.dense.weight.clone()
        step = float(dense[0, 0])
        assert (dense == step).all() and (rows == step).all(), (version, dense, rows)
        assert version >= self.version and step >= self.step
        self.version, self.step = version, step
        return step

    def advance(self) -> None:
        """Later steps are seen."""
        before = self.step
        eventually(lambda: self.look() > before, _SECONDS)


def status(addresses: list[str], token: Path) -> str:
    given = ["status", *addresses, "--token-file", str(token)]
    return CliRunner().invoke(app, given, env={"COLUMNS": "400"}).output


def test_answers_are_of_one_version_while_servers_and_their_source_are_killed(
    tmp_path: Path,
) -> None:
    log = {"durability": "log", "durability_folder": tmp_path / "log"}
    with LocalCluster(2, workers=0, processes=True, **log) as cluster:  # type: ignore[arg-type]
        resolver = cluster.cluster_resolver
        token = resolver.cluster_token or ""
        source = ",".join(filter(None, resolver.cluster_spec().job_tasks("ps")))
        with (
            ParameterServerStrategy(resolver) as strategy,
            serve(tmp_path, 0, source, token) as (first, victim),
        ):
            training = Training(strategy)
            try:
                with serve(tmp_path, 1, f"serve://{first}", token) as (second, _):
                    looks = [Looks(first, token), Looks(second, token)]
                    for each in looks * 5:
                        each.advance()

                    cluster.kill("ps", 1)
                    for _ in range(50):
                        looks[0].look()
                    words = "its source is lost"
                    eventually(lambda: words in status([first], tmp_path / "token"), _SECONDS)
                    cluster.restart("ps", 1)
                    for each in looks:
                        each.advance()
                    eventually(lambda: words not in status([first], tmp_path / "token"), _SECONDS)

                    victim.kill()
                    victim.wait()
                    for _ in range(20):
                        looks[1].look()
                    eventually(lambda: words in status([second], tmp_path / "token"), _SECONDS)
                    for each in looks:
                        each.reader.close()
            finally:
                training.close()
