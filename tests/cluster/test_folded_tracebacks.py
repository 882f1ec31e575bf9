"""Tracebacks of scripts that fail under `stratagem run`, and elsewhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deploy.processes.process_tree import python

pytestmark = pytest.mark.long

MODEL = """
import torch
import stratagem

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.inner(x)

strategy = stratagem.ParameterServerStrategy()
with strategy.scope():
    model = Model()
strategy.run(lambda: model(torch.ones(3)))
"""
COORDINATOR = """
import stratagem
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster

def wrong():
    raise ValueError("this is wrong")

if __name__ == "__main__":
    with LocalCluster(ps=1, worker_servers=1, processes=True) as cluster:
        strategy = stratagem.ParameterServerStrategy(cluster.cluster_resolver)
        ClusterCoordinator(strategy).schedule(wrong).fetch()
"""
OWN_HOOK = """
import sys
sys.excepthook = lambda kind, error, trace: print("mine", error, file=sys.stderr)
import stratagem
raise ValueError("seen")
"""
SPAWNED = """
import multiprocessing, pickle, sys
import stratagem

class Seen:
    pass

def work(value):
    return type(value).__module__, sys.argv[1:]

if __name__ == "__main__":
    assert type(pickle.loads(pickle.dumps(Seen()))) is Seen
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(work, (Seen(),)), sys.path[0])
"""
RUN = ("-m", "stratagem_deploy.cli", "run")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def printed(*arguments: str, **environment: str) -> tuple[int, str, str]:
    with python(*arguments, environment=environment, output=subprocess.PIPE) as process:
        output, errors = process.communicate(timeout=110)
    return process.returncode, output, errors.partition("stratagem: worker:0 failed")[0]


def test_a_script_that_fails_shows_its_own_frames(script: Path) -> None:
    script.write_text(MODEL)
    code, _, errors = printed(*RUN, str(script))
    assert code == 1
    files = [line for line in errors.splitlines() if line.startswith("  File ")]
    assert len(files) == 3, errors
    assert all(f'  File "{script}", line ' in line for line in files)
    first, *others = (line for line in errors.splitlines() if "  … " in line)
    assert " of stratagem" in first
    assert first.endswith("; --full-tracebacks of `stratagem run` shows them")
    assert [line.rpartition(" of ")[2] for line in others] == ["torch", "torch"]
    assert errors.endswith("(1x3 and 2x1)\n")


@pytest.mark.parametrize("how", ["option", "variable", "no run"])
def test_all_frames_are_shown_where_they_are_wanted(script: Path, how: str) -> None:
    script.write_text(MODEL)
    if how == "option":
        code, _, errors = printed(*RUN, "--full-tracebacks", str(script))
    elif how == "variable":
        code, _, errors = printed(*RUN, str(script), STRATAGEM_FULL_TRACEBACKS="1")
    else:
        code, _, errors = printed(str(script))
    assert code == 1
    assert "…" not in errors
    assert sum("/stratagem/" in line for line in errors.splitlines()) > 2
    assert "/torch/" in errors


def test_what_a_worker_sent_of_its_traceback_is_folded_too(script: Path) -> None:
    script.write_text(COORDINATOR)
    code, _, errors = printed(str(script), STRATAGEM_FOLD_TRACEBACKS="1")
    assert code == 1
    above, _, below = errors.partition("direct cause")
    for half in (above, below):
        files = [line for line in half.splitlines() if line.startswith("  File ")]
        assert [str(script) in line for line in files] == [True], errors
        assert " of stratagem" in half
        assert "ValueError: this is wrong" in half


def test_a_hook_of_the_program_stays(script: Path) -> None:
    script.write_text(OWN_HOOK)
    code, _, errors = printed(*RUN, str(script))
    assert (code, errors) == (1, "mine seen\n")


def test_a_script_is_the_main_module_as_without_run(script: Path) -> None:
    script.write_text(SPAWNED)
    code, output, errors = printed(*RUN, "--ps", "0", str(script), "3", "-x")
    assert code == 0, errors
    assert output == f"('__mp_main__', ['3', '-x']) {script.parent}\n"
    assert printed(str(script), "3", "-x") == (0, output, "")
