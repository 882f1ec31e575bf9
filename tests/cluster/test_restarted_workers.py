"""`stratagem run --max-restarts`: workers that fail once, or again and again."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.deploy.processes.process_tree import python

pytestmark = pytest.mark.cluster

# Every step adds one. A worker that is started again takes the steps that are left.
TRAIN = """
import json, os, signal, sys
from pathlib import Path
import torch
from stratagem import DistributedOptimizer, ParameterServerStrategy

consistency, victim, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
progress = Path(__file__).with_name(f"progress-{task}")
done = int(progress.read_text()) if progress.exists() else 0
strategy = ParameterServerStrategy(consistency=consistency)
with strategy.scope():
    model = torch.nn.Linear(1, 1, bias=False)
    if task == 0 and not done:
        torch.nn.init.zeros_(model.weight)
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

def step():
    optimizer.zero_grad()
    (-model.weight.sum()).backward()
    optimizer.step()

for number in range(done, 20):
    strategy.run(step)
    progress.write_text(str(number + 1))
    if number == 9 and task == victim and not done:
        os._exit(3) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
strategy.barrier("trained")
if task == 0:
    print(model.weight.item())
"""
FAIL = """
import sys
from pathlib import Path
with Path(__file__).with_name("starts").open("a") as file:
    file.write("x")
sys.exit(int(sys.argv[1]))
"""


def finished(folder: Path, body: str, options: list[str], *arguments: str) -> tuple[int, str, str]:
    """Runs a script to its end; returns the exit code and both outputs."""
    (folder / "script.py").write_text(body)
    command = ["-m", "stratagem_deploy.cli", "run", *options]
    command += [str(folder / "script.py"), *arguments]
    # A worker that was lost is known to be gone long before it is started again.
    impatience = {"STRATAGEM_RECONNECT_SECONDS": "0.2"}
    with python(*command, environment=impatience, output=subprocess.PIPE) as run:
        output, errors = run.communicate(timeout=110)
    return run.returncode, output, errors


@pytest.mark.parametrize(
    ("consistency", "victim", "how"),
    [
        pytest.param("async", 1, "exit", marks=pytest.mark.long),
        ("sync", 0, "kill"),
        pytest.param("async", 0, "kill", marks=pytest.mark.long),
        pytest.param("sync", 1, "kill", marks=pytest.mark.long),
    ],
)
def test_training_goes_on_with_a_worker_that_was_started_again(
    tmp_path: Path, consistency: str, victim: int, how: str
) -> None:
    options = ["--workers", "2", "--max-restarts", "1"]
    arguments = (consistency, str(victim), how)
    code, output, errors = finished(tmp_path, TRAIN, options, *arguments)
    steps = 40.0 if consistency == "async" else 20.0
    assert (code, output) == (0, f"{steps}\n"), errors
    ended = "exit code 3" if how == "exit" else "signal SIGKILL"
    assert (
        f"stratagem: worker:{victim} failed, with {ended}, and is started again: restart 1 of 1"
    ) in errors


@pytest.mark.long
def test_without_restarts_the_first_failure_ends_the_run(tmp_path: Path) -> None:
    options = ["--workers", "2"]
    code, output, errors = finished(tmp_path, TRAIN, options, "async", "1", "kill")
    assert (code, output) == (128 + signal.SIGKILL, "")
    assert "worker:1 failed first, with signal SIGKILL" in errors


@pytest.mark.parametrize(
    ("exit_code", "starts"), [(3, 3), pytest.param(2, 1, marks=pytest.mark.long)]
)
def test_a_script_that_cannot_succeed_ends_the_run(
    tmp_path: Path, exit_code: int, starts: int
) -> None:
    options = ["--max-restarts", "2"]
    code, _, errors = finished(tmp_path, FAIL, options, str(exit_code))
    assert code == exit_code
    assert (tmp_path / "starts").read_text() == "x" * starts
    assert f"worker:0 failed first, with exit code {exit_code}" in errors
    assert ("a wrong call that no restart mends" in errors) == (exit_code == 2)


def test_an_interruption_does_not_wait_for_the_next_start(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FAIL)
    command = ["-m", "stratagem_deploy.cli", "run", "--max-restarts", "99", str(script)]
    with python(*command, "7", output=subprocess.PIPE) as run:
        assert run.stderr
        while "restart 4 of 99" not in run.stderr.readline():  # is 4 s away
            pass
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGINT
    assert (tmp_path / "starts").read_text() == "xxxx"


def test_restarts_want_servers(tmp_path: Path) -> None:
    options = ["--ps", "0", "--max-restarts", "1"]
    code, _, errors = finished(tmp_path, FAIL, options, "0")
    assert code == 2
    assert "needs servers" in " ".join(errors.split())
    assert not (tmp_path / "starts").exists()


def test_a_restart_is_a_line_of_json_if_asked(tmp_path: Path) -> None:
    options = ["--json", "--max-restarts", "1"]
    code, output, _ = finished(tmp_path, FAIL, options, "7")
    objects = [json.loads(line) for line in output.splitlines()]
    assert code == 7
    restart = {"task": "worker:0", "ended": "exit code 7", "restart": 1, "most": 1}
    assert restart in objects
