"""Stratagem typed cell by cell into a Jupyter kernel: what stays, what Ctrl-C and edits do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebooks.kernel import Kernel, running

pytestmark = pytest.mark.long

IMPORTS = """
%load_ext autoreload
%autoreload 2
import torch, stratagem
from torch import nn
from stratagem_deploy import LocalCluster
"""

# As in a notebook, whose cells know each other's names.
TRAIN = """
WEIGHTS = torch.tensor([[1.0], [-2.0], [0.5]])

def train(resolver, steps, fails=False):
    strategy = stratagem.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = nn.Linear(3, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = stratagem.DistributedOptimizer(sgd)

    def step(features):
        loss = (model(features) - features @ WEIGHTS).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for number in range(steps):
        loss = strategy.run(step, args=(torch.randn(32, 3),))
        if number == 10:
            print("trains", flush=True)
            assert not fails, "a mistake"
    return loss
"""

CLOSING = "\nstratagem.ParameterServerStrategy.close_all()"

MAKING = """
strategy = stratagem.ParameterServerStrategy(cluster.cluster_resolver)
with strategy.scope():
    model = nn.Linear(3, 1)
optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05))

def step(features):
    loss = (model(features) - features @ WEIGHTS).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

MODEL = CLOSING + MAKING

LOOP = """
losses = []
while True:
    losses.append(strategy.run(step, args=(torch.randn(32, 3),)))
    if len(losses) == 10:
        print("trains", flush=True)
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with running(tmp_path_factory.mktemp("notebook")) as kernel:
        kernel.run(IMPORTS + TRAIN)
        yield kernel


@pytest.fixture(params=[False, True], ids=["threads", "processes"])
def cluster(request: pytest.FixtureRequest, kernel: Kernel) -> Iterator[Kernel]:
    """A kernel in which a cluster runs."""
    kernel.run(f"cluster = LocalCluster(ps=2, workers=2, processes={request.param}).start()")
    yield kernel
    kernel.run("cluster.close()")


def interrupted(kernel: Kernel, cell: str) -> None:
    begun = kernel.begin(cell)
    kernel.printed(begun, "trains")
    kernel.interrupt()
    assert kernel.ran(begun).error == "KeyboardInterrupt"


def test_a_cluster_lives_from_cell_to_cell(cluster: Kernel) -> None:
    for _ in range(2):
        cluster.run("assert max(cluster.run(train, 50)) < 1")


def test_training_goes_on_in_the_next_cell_after_ctrl_c(kernel: Kernel) -> None:
    kernel.run("cluster = LocalCluster(ps=2, workers=2).start()")
    for _ in range(3):
        interrupted(kernel, "cluster.run(train, 10**9)")
        kernel.run("assert max(cluster.run(train, 100)) < 0.1")
    kernel.run("cluster.close()")


def test_a_function_that_failed_can_be_corrected(kernel: Kernel) -> None:
    kernel.run("cluster = LocalCluster(ps=2, workers=2).start()")
    failed = kernel.ran(kernel.begin("cluster.run(train, 50, True)"))
    assert (failed.error, failed.message) == ("AssertionError", "a mistake")
    kernel.run("assert max(cluster.run(train, 100)) < 0.1")
    kernel.run("cluster.close()")


def test_a_loop_of_the_notebook_goes_on_after_ctrl_c(kernel: Kernel) -> None:
    kernel.run("cluster = LocalCluster(ps=2, workers=0).start()" + MODEL)
    for _ in range(3):
        interrupted(kernel, LOOP)
        kernel.run("assert strategy.run(step, args=(torch.randn(32, 3),)) <= losses[0]")
    kernel.run("strategy.close(); cluster.close()")


def test_a_cell_that_makes_a_strategy_can_be_run_again(kernel: Kernel) -> None:
    kernel.run("cluster = LocalCluster(ps=2, workers=0).start()")
    kernel.run(MODEL + "former, trained = model, strategy.run(step, args=(torch.ones(32, 3),))")
    kernel.run(MODEL + "assert torch.equal(model.weight, former.weight)")
    again = kernel.ran(kernel.begin(MAKING))
    assert again.error == "AlreadyExistsError"
    assert "close_all()" in again.message
    kernel.run(MODEL + "assert torch.equal(model.weight, former.weight)")
    kernel.run("strategy.close(); cluster.close()")


@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_workers_run_a_module_as_it_was_edited_last(
    kernel: Kernel, processes: bool, tmp_path: Path
) -> None:
    name = f"edited_{processes}"
    kernel.run(f"import sys; sys.path.append({str(tmp_path)!r})")
    edit(tmp_path / f"{name}.py", 1)
    kernel.run(
        f"""
import {name} as mine
from {name} import number
cluster = LocalCluster(ps=1, worker_servers=1, processes={processes}).start()
strategy = stratagem.ParameterServerStrategy(cluster.cluster_resolver)
coordinator = stratagem.coordinator.ClusterCoordinator(strategy)

def by_module(): return mine.number()
def by_name(): return number()
def replicas(): return strategy.run(mine.number)
def all_of_them():
    schedule = coordinator.schedule
    return [schedule(f).fetch() for f in (mine.number, number, by_module, by_name, replicas)]
"""
    )
    assert kernel.run("print(all_of_them())") == "[1, 1, 1, 1, 1]\n"
    for version in (2, 3):
        edit(tmp_path / f"{name}.py", version)
        assert kernel.run("print(all_of_them())") == f"{[version] * 5}\n"
    kernel.run("strategy.close(); cluster.close()")


def edit(file: Path, version: int) -> None:
    """Write another version, which file systems tell from the one before."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    while not file.exists() or file.stat().st_mtime_ns == before:
        file.write_text(f"def number():\n    return {version}  # {'x' * version}\n")
        time.sleep(0.001)
