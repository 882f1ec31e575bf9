"""Local steps under `stratagem run`, whose workers and server are killed at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_resuming_program import kill_all, members
from tests.deploy.processes.process_tree import python
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WORKERS, STEPS, DECAY = 2, 60, 0.5
KILLS = int(os.environ.get("STRATAGEM_TEST_KILLS", "5"))

PROGRAM = f"""
import json, sys, time
from functools import partial
from pathlib import Path
import torch
from torch import nn
import stratagem

folder, consistency = Path(sys.argv[1]), sys.argv[2]
STEPS, WORKERS, DECAY = {STEPS}, {WORKERS}, {DECAY}
strategy = stratagem.ParameterServerStrategy(consistency=consistency, peer_seconds=600.0)
worker = strategy.cluster_resolver.task_id
with strategy.scope():
    marks, moved = nn.Parameter(torch.zeros(STEPS * WORKERS)), nn.Parameter(torch.zeros(1))
    model = nn.ParameterList([marks, moved])
marks, moved = model
inner = torch.optim.SGD([dict(params=[marks]), dict(params=[moved], momentum=DECAY)], lr=1.0)
# The mean of the workers' differences, so often, is their sum.
outer = partial(torch.optim.SGD, lr=float(WORKERS if consistency == "sync" else 1))
optimizer = stratagem.LocalSteps(inner, outer, every=3, keep_state=1)
run = strategy.resume(folder / "checkpoints")


def step(number):
    marks.grad, moved.grad = torch.zeros_like(marks), torch.full_like(moved, 1.0 + worker)
    marks.grad[number * WORKERS + worker] = -1.0
    optimizer.step()


for number in strategy.steps(STEPS):
    strategy.run(step, args=(number,))
    time.sleep(0.05)
    with open(folder / f"progress{{worker}}", "a") as file:
        file.write(f"{{number}}\\n")
run.finish()
optimizer.adopt()
state = inner.state[moved]["momentum_buffer"].item()
found = dict(state=state, marks=marks.tolist(), moved=moved.item())
(folder / f"found{{worker}}").write_text(json.dumps(found))
"""


def momentum(worker: int, steps: int) -> tuple[float, float]:
    """What a worker's own optimizer has after some steps, and how far it has moved."""
    state = moved = 0.0
    for _ in range(steps):
        state = DECAY * state + 1.0 + worker
        moved -= state
    return state, moved


def survived(folder: Path, consistency: str, seed: int) -> list[Mapping[str, Any]]:
    """What each worker finds at the end of a run in which processes are killed."""
    program, chance = folder / "program.py", random.Random(seed)
    program.write_text(PROGRAM)
    (folder / "checkpoints").mkdir()
    options = ("--ps", "1", "--workers", str(WORKERS), "--max-restarts", "1000")
    durable = ("--durability", "log", "--durability-folder", str(folder / "servers"))
    started = ("-m", "stratagem_deploy.cli", "run", *options, *durable)
    impatience = {"STRATAGEM_RECONNECT_SECONDS": "0.5", "OMP_NUM_THREADS": "1"}

    def progress() -> int:
        files = [folder / f"progress{worker}" for worker in range(WORKERS)]
        return sum(one.read_text().count("\n") for one in files if one.exists())

    with (
        (folder / "log").open("a") as log,
        python(
            *started,
            str(program),
            str(folder),
            consistency,
            environment=impatience,
            output=log.fileno(),
        ) as run,
    ):
        try:
            for kill in range(KILLS):
                before = progress()
                eventually(lambda before=before: progress() > before + 5, 200.0)  # type: ignore[misc]
                time.sleep(chance.uniform(0.0, 0.2))
                victim = "stratagem_psserver" if kill % 3 == 2 else str(program)
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(members(run, victim)), signal.SIGKILL)
            assert run.wait(timeout=400) == 0, (folder / "log").read_text()[-5000:]
        finally:
            kill_all(run)
    return [json.loads((folder / f"found{worker}").read_text()) for worker in range(WORKERS)]


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_each_local_step_counts_once_and_states_are_as_of_all_of_them(
    tmp_path: Path, consistency: str
) -> None:
    expected = [momentum(worker, STEPS) for worker in range(WORKERS)]
    for worker, found in enumerate(survived(tmp_path, consistency, seed=1)):
        assert found["marks"] == [1.0] * STEPS * WORKERS
        assert found["state"] == pytest.approx(expected[worker][0])
        assert found["moved"] == pytest.approx(sum(moved for _, moved in expected), rel=1e-5)
