"""Processes that learn of their end, and finish what they are at before."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

import stratagem
from stratagem import ParameterServerStrategy
from stratagem.coordinator import ClusterCoordinator, experimental_get_current_worker_index
from stratagem_deploy import LocalCluster
from tests.cluster.interventions import beside
from tests.deploy.processes.process_tree import is_alive, python
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

# Every step adds one. The file says which steps were begun, and which ended.
TRAIN = """
import json, os, time
from pathlib import Path
import torch
import stratagem
from stratagem import DistributedOptimizer, ParameterServerStrategy

task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
folder = Path(__file__).parent
strategy = ParameterServerStrategy()
with strategy.scope():
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.zero_()
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

def step():
    optimizer.zero_grad()
    (-model.weight.sum()).backward()
    time.sleep(0.05)
    optimizer.step()

steps = 0
with stratagem.Notice() as notice:
    for number in notice.until(range(100_000)):
        (folder / f"begun-{task}").write_text(f"{os.getpid()} {number + 1}")
        strategy.run(step)
        steps += 1
        if (folder / "end").exists():
            break
(folder / f"ended-{task}").write_text(json.dumps([steps, notice.given]))
if task == 0:
    strategy.refresh()
    print(model.weight.item())
"""


def begun(folder: Path, task: int) -> tuple[int, int]:
    """The process of a worker, and the step that it has begun."""
    words = (folder / f"begun-{task}").read_text().split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else (0, 0)


def both_train(folder: Path) -> bool:
    files = [folder / f"begun-{task}" for task in range(2)]
    there = all(file.exists() for file in files)
    return there and all(begun(folder, task)[1] > 3 for task in range(2))


def ended(folder: Path, task: int) -> tuple[int, bool]:
    steps, given = json.loads((folder / f"ended-{task}").read_text())
    return steps, given


def command(folder: Path, *options: str) -> list[str]:
    (folder / "train.py").write_text(TRAIN)
    run = ["-m", "stratagem_deploy.cli", "run", "--workers", "2", *options]
    return [*run, str(folder / "train.py")]


@pytest.mark.long
def test_a_run_that_is_to_end_lets_all_workers_finish_their_step(tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    with python(
        *command(tmp_path, "--notice", f"file:{notice}", "--grace", "60"), output=subprocess.PIPE
    ) as run:
        eventually(lambda: both_train(tmp_path), 400.0)
        notice.touch()
        output, errors = run.communicate(timeout=400)
    assert run.returncode == 0, errors
    for task in range(2):
        steps, given = ended(tmp_path, task)
        assert given
        assert steps == begun(tmp_path, task)[1], "a step was begun and not finished"
    assert 0 < float(output) <= sum(ended(tmp_path, task)[0] for task in range(2))


def test_a_worker_that_is_to_end_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    with python(*command(tmp_path), output=subprocess.PIPE) as run:
        eventually(lambda: both_train(tmp_path), 400.0)
        process, _ = begun(tmp_path, 1)
        subprocess.run(["kill", "-TERM", str(process)], check=True)
        eventually(lambda: not is_alive(process))
        _, seen = begun(tmp_path, 0)
        eventually(lambda: begun(tmp_path, 0)[1] > seen + 3)
        assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        output, errors = run.communicate(timeout=400)
    assert run.returncode == 0, errors
    steps, given = ended(tmp_path, 1)
    assert (steps, given) == (begun(tmp_path, 1)[1], True)
    assert float(output) == sum(ended(tmp_path, task)[0] for task in range(2))


def hold(gate: str) -> int:
    """Runs until a file is there."""
    Path(f"{gate}-held").touch()
    while not Path(gate).exists():
        time.sleep(0.01)
    return experimental_get_current_worker_index()


def where() -> int:
    return experimental_get_current_worker_index()


def test_a_worker_server_that_is_to_end_finishes_its_function_and_gives_back_the_others(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    with (
        LocalCluster(ps=1, worker_servers=1) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        coordinator = ClusterCoordinator(strategy)
        held = coordinator.schedule(hold, args=(str(gate),))
        eventually(Path(f"{gate}-held").exists)
        waits = coordinator.schedule(where)
        with beside(lambda: cluster.stop("worker", 0)) as stop:
            coordinator.add_worker(cluster.add_worker_server())
            assert waits.fetch() == 1
            assert stop.is_alive(), "the function still runs"
            gate.touch()
            assert held.fetch() == 0
        assert coordinator.schedule(where).fetch() == 1
        cluster.restart("worker", 0)
        eventually(lambda: coordinator.workers == [0, 1])
        coordinator.join()


@pytest.mark.parametrize("kind", ["ps", pytest.param("worker", marks=pytest.mark.long)])
def test_a_server_ends_by_a_notice(kind: str, tmp_path: Path) -> None:
    ready, token, notice = (tmp_path / name for name in ("ready", "token", "notice"))
    token.write_text("the cluster's secret")
    environment: Mapping[str, str] = {"STRATAGEM_NOTICE": f"file:{notice}"}
    files = ("--ready-file", str(ready), "--token-file", str(token))
    server = ("-m", "stratagem_deploy.cli", kind, *files)
    with python(*server, environment=environment, output=subprocess.PIPE) as process:
        eventually(ready.exists)
        assert process.poll() is None
        notice.touch()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "says that this process is to end" in errors


def test_a_loop_ends_after_the_element_under_way(tmp_path: Path) -> None:
    notice = stratagem.Notice(f"file:{tmp_path / 'notice'}")
    seen = []
    with notice:
        for number in notice.until(range(10)):
            seen.append(number)
            if number == 2:
                (tmp_path / "notice").touch()
                eventually(lambda: notice.given)
    assert seen == [0, 1, 2]
    assert list(notice.until([1])) == []
