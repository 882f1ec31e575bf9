"""One script that loads state dicts in each of its processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.deploy.processes.process_tree import python

pytestmark = pytest.mark.long

SCRIPT = """
import json, os, sys, torch
from torch import nn
import stratagem

config = json.loads(os.environ["TF_CONFIG"])
task, has_servers = config["task"]["index"], bool(config["cluster"].get("ps"))
strategy = (
    stratagem.ParameterServerStrategy(peer_seconds=float(sys.argv[2]))
    if has_servers
    else stratagem.MultiWorkerMirroredStrategy()
)
with strategy.scope():
    model = nn.Linear(3, 2)
optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(model.parameters()))
state = torch.load(sys.argv[1], weights_only=True)
if task == int(sys.argv[3]):
    state["model"]["weight"] += 1
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])

def step():
    optimizer.zero_grad()
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()

for _ in range(3):
    strategy.run(step)
if has_servers:
    strategy.barrier()
print("steps", int(optimizer.state_dict()["state"][0]["step"]))
"""


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The script, and what a plain program has saved after a step."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "state.pt")
    (tmp_path / "script.py").write_text(SCRIPT)
    return [str(tmp_path / "script.py"), "--", str(tmp_path / "state.pt")]


def finished(servers: int, arguments: list[str], *more: str) -> tuple[int, str, str]:
    """Runs two workers to the end; returns the exit code and both outputs."""
    options = ["run", "--ps", str(servers), "--workers", "2"]
    command = ["-m", "stratagem_deploy.cli", *options, *arguments, *more]
    with python(*command, output=subprocess.PIPE) as run:
        output, errors = run.communicate()
        return run.returncode, output, errors


@pytest.mark.parametrize(("servers", "steps"), [(2, 1 + 2 * 3), (0, 1 + 3)])
def test_each_process_loads(servers: int, steps: int, arguments: list[str]) -> None:
    code, output, errors = finished(servers, arguments, "60", "-1")
    assert code == 0, errors
    assert output.splitlines() == [f"steps {steps}"]
    assert f"worker:1 | steps {steps}" in errors


def test_a_process_that_loads_other_values_is_named(arguments: list[str]) -> None:
    code, _, errors = finished(2, arguments, "5", "1")
    assert code != 0
    assert "parameter 'weight' was set in /job:worker/task:1 to values that" in errors
