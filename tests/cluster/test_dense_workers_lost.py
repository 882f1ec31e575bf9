"""Workers that all-reduce dense layers, some of which are killed, and started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WORKERS, MOST_STEPS = 3, 10_000
# The machine that runs tests may be busy.
KILLS = int(os.environ.get("STRATAGEM_TEST_KILLS", "6"))

# Loads what a worker needs once, and then becomes a worker for each line that it reads.
PROGRAM = """
import json, logging, os, signal, sys, time
from pathlib import Path
import torch
from torch import nn
import stratagem
stratagem.HybridOptimizer, stratagem.ParameterServerStrategy, stratagem.nn.Embedding

folder, most, cluster = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
logging.basicConfig(format="%(asctime)s %(message)s")
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        break
    print(pid, flush=True)
else:
    sys.exit()
worker = int(line)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
output = os.open(folder / f"output{worker}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(output, 1)
os.dup2(output, 2)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
task = {"type": "worker", "index": worker}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})


class Marks(torch.optim.Optimizer):
    # Counts for each element in how many steps it had a gradient.
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                one += (one.grad != 0).float()
                state = self.state[one]
                state["step"] = state.get("step", torch.tensor(0.0)) + 1


class Samples(nn.Module):
    # A row, and an element, for each sample of each worker.
    def __init__(self, count):
        super().__init__()
        self.table = stratagem.nn.Embedding(count, 1)
        self.dense = nn.Parameter(torch.zeros(count))
        nn.init.zeros_(self.table.weight)

    def forward(self, sample):
        return -(self.table(sample).sum() + self.dense[sample].sum())


with stratagem.ParameterServerStrategy(peer_seconds=600.0) as strategy:
    with strategy.scope():
        model = Samples(3 * most)
    optimizer = stratagem.HybridOptimizer(
        Marks([model.dense]),
        tables=stratagem.DistributedOptimizer(torch.optim.SGD(model.table.parameters(), lr=1.0)),
        patience=3.0,
    )
    run = strategy.resume(folder / "checkpoints")

    def step(sample):
        optimizer.zero_grad()
        model(sample).backward()
        optimizer.step()

    def stop():
        try:
            return int((folder / "stop").read_text())
        except (FileNotFoundError, ValueError):
            return most

    taken = 0
    for number in strategy.steps(most):
        if number >= stop():
            break
        strategy.run(step, args=(torch.tensor([3 * number + worker]),))
        taken = number + 1
        if worker == 0 and (folder / "save").exists():
            strategy.save(folder / "checkpoints")
            (folder / "save").unlink()
        with open(folder / f"progress{worker}", "a") as file:
            file.write(f"{number} {time.time()}\\n")
        time.sleep(0.01)
    (folder / f"taken{worker}").write_text(str(taken))
    strategy.barrier("over")
    if worker == 0:
        rows = model.table.weight.detach()[:, 0]
        found = {"table": rows.tolist(), "dense": model.dense.tolist()}
        (folder / "found").write_text(json.dumps(found))
    strategy.barrier("read")
(folder / f"ended{worker}").touch()
"""


class Workers:
    """Starts workers' processes."""

    def __init__(self, folder: Path, servers: list[str]) -> None:
        cluster = {"ps": servers, "worker": [f"127.0.0.1:{one + 1}" for one in range(WORKERS)]}
        environment = {"STRATAGEM_TOKEN_FILE": str(folder / "token"), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(MOST_STEPS), json.dumps(cluster)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, number: int) -> int:
        """Start a worker; return the number of its process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Worker:
    """A worker's process, which is started again when it was killed."""

    def __init__(self, number: int, folder: Path, workers: Workers) -> None:
        self.number, self.folder, self._workers = number, folder, workers
        self.start()

    def start(self) -> None:
        self.pid = self._workers.start(self.number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def output(self) -> str:
        return (self.folder / f"output{self.number}").read_text()[-3000:]

    @property
    def runs(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    @property
    def has_ended(self) -> bool:
        ended = (self.folder / f"ended{self.number}").exists()
        assert ended or self.runs, self.output()
        return ended

    def steps(self) -> list[tuple[int, float]]:
        """The steps that it has finished, and when."""
        try:
            lines = (self.folder / f"progress{self.number}").read_text().splitlines()
        except FileNotFoundError:
            return []
        pairs = (line.split() for line in lines)
        return [(int(pair[0]), float(pair[1])) for pair in pairs if len(pair) == 2]

    def latest(self) -> float:
        return max((when for _, when in self.steps()), default=0.0)


@contextmanager
def training(folder: Path) -> Iterator[list[Worker]]:
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    (folder / "checkpoints").mkdir()
    with (
        ParameterServer(ServerSettings(task=0, token=TOKEN)) as first,
        ParameterServer(ServerSettings(task=1, token=TOKEN)) as second,
    ):
        servers = [first.address, second.address]
        starts = Workers(folder, servers)
        workers = [Worker(number, folder, starts) for number in range(WORKERS)]
        try:
            yield workers
        finally:
            for worker in workers:
                worker.kill()
            starts.close()


def goes_on(workers: list[Worker], since: float) -> bool:
    """Whether all of some workers have finished a step that began after a moment."""
    for worker in workers:
        assert worker.runs, worker.output()
    return all(sum(when > since for _, when in worker.steps()[-2:]) == 2 for worker in workers)


def assert_each_sample_counts_once(folder: Path, workers: list[Worker]) -> None:
    """Have all end, and look at each sample in either part."""
    reached = max(number for one in workers for number, _ in one.steps())
    (folder / "stop").write_text(str(reached + 100))
    eventually(lambda: all(worker.has_ended for worker in workers), 600.0)
    found = json.loads((folder / "found").read_text())
    for number in range(WORKERS):
        taken = int((folder / f"taken{number}").read_text())
        assert taken > reached
        for part in ("table", "dense"):
            own = found[part][number::WORKERS]
            assert own[:taken] == [1.0] * taken, (part, number)
            assert own[taken:] == [0.0] * (MOST_STEPS - taken), (part, number)


def go_on(workers: list[Worker]) -> None:
    """Wait until all of some workers have finished steps from now on."""
    began = time.time()
    eventually(lambda: goes_on(workers, began), 120.0)


def test_others_go_on_in_seconds_and_each_sample_counts_once(tmp_path: Path) -> None:
    draw, waits = random.Random(5), []
    with training(tmp_path) as workers:
        eventually(lambda: goes_on(workers, 0.0), 120.0)
        for kill in range(KILLS):
            # The chief's turn comes, too.
            lost = workers[kill % WORKERS]
            time.sleep(draw.uniform(0.0, 0.1))
            lost.kill()
            killed = time.time()
            others = [one for one in workers if one is not lost]
            eventually(lambda killed=killed, others=others: goes_on(others, killed), 60.0)  # type: ignore[misc]
            waits.append(max(one.latest() for one in others) - killed)
            lost.start()
            go_on(workers)
        assert_each_sample_counts_once(tmp_path, workers)
    print("others went on after", [f"{one:.2f}" for one in waits])
    assert max(waits) < 10.0


def test_when_all_are_killed_tables_and_dense_layers_go_back_together(tmp_path: Path) -> None:
    with training(tmp_path) as workers:
        go_on(workers)
        (tmp_path / "save").touch()
        eventually(lambda: not (tmp_path / "save").exists(), 60.0)
        go_on(workers)
        for worker in workers:
            worker.kill()
        eventually(lambda: not any(worker.runs for worker in workers), 60.0)
        for worker in workers:
            worker.start()
        go_on(workers)
        assert_each_sample_counts_once(tmp_path, workers)


@pytest.mark.parametrize("number", [2, 0])
def test_a_worker_that_was_stopped_goes_on_with_the_others_values(
    tmp_path: Path, number: int
) -> None:
    with training(tmp_path) as workers:
        go_on(workers)
        workers[number].signal(signal.SIGSTOP)
        go_on([one for one in workers if one.number != number])
        workers[number].signal(signal.SIGCONT)
        go_on(workers)
        assert_each_sample_counts_once(tmp_path, workers)
