"""`stratagem status` and its like find what `stratagem run` started."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.processes.process_tree import python
from tests.waiting import eventually

pytestmark = pytest.mark.long

SCRIPT = """
import time, torch
from pathlib import Path
from stratagem import ParameterServerStrategy
strategy = ParameterServerStrategy()
with strategy.scope():
    model = torch.nn.Linear(2, 1)
Path(__file__).with_suffix(".ready").touch()
while True: time.sleep(0.01)
"""
COMMAND = ("-m", "stratagem_deploy.cli")


@contextmanager
def running(folder: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a script until the end of the block, which begins when it has variables."""
    script = folder / f"{name}.py"
    script.write_text(SCRIPT)
    environment = {"TMPDIR": str(folder)}
    command = [*COMMAND, "run", str(script)]
    with python(*command, environment=environment, output=subprocess.DEVNULL) as run:
        eventually(script.with_suffix(".ready").exists)
        yield run


def told(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """The exit code and both outputs of a command in a shell that knows nothing."""
    nothing = {"TF_CONFIG": "", "STRATAGEM_TOKEN_FILE": "", "COLUMNS": "200"}
    environment = {"TMPDIR": str(folder), **nothing}
    with python(*COMMAND, *arguments, environment=environment, output=subprocess.PIPE) as process:
        output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def test_the_only_run_of_this_machine_is_found(tmp_path: Path) -> None:
    with running(tmp_path, "train") as run:
        for command in ("status", "variables", "top"):
            code, output, errors = told(tmp_path, command)
            assert code == 0
            assert "ps:0" in output
            assert f"{tmp_path / 'train.py'}` (process {run.pid})" in errors
        run.send_signal(signal.SIGKILL)
        run.wait()
        code, output, errors = told(tmp_path, "status")
    assert (code, output) == (2, "")
    assert "there is no server to ask" in errors


def test_of_several_runs_the_user_says_which(tmp_path: Path) -> None:
    with running(tmp_path, "a") as a, running(tmp_path, "b") as b:
        code, output, errors = told(tmp_path, "status")
        assert (code, output) == (2, "")
        assert "--run PID" in errors
        for run, name in ((a, "a.py"), (b, "b.py")):
            assert f"{tmp_path / name}` (process {run.pid})" in errors
        code, output, errors = told(tmp_path, "status", "--run", str(b.pid))
        assert code == 0
        assert "2 variables, 12 B" in output
        assert f"{tmp_path / 'b.py'}` (process {b.pid})" in errors
        code, _, errors = told(tmp_path, "top", "--run", "1")
        assert code == 2
        assert "--run PID" in errors
