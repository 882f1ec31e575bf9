"""A policy that is trained on what actors in other processes collect."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.processes.process_tree import python

pytest.importorskip("gymnasium", reason="pip install 'stratagem[examples]'")

SCRIPT = Path(__file__).parents[2] / "examples/cartpole.py"


@pytest.mark.cluster
@pytest.mark.timeout(300)  # most of it is the start of five processes
def test_actors_in_other_processes_train_a_policy(tmp_path: Path) -> None:
    with python(
        *("-m", "stratagem_deploy.cli", "run", "--ps", "1", "--workers", "1"),
        *(str(SCRIPT), "--updates", "60", "--folder", str(tmp_path)),
        output=subprocess.PIPE,
    ) as run:
        output, errors = run.communicate()
    assert run.returncode == 0, errors
    score = re.search(r"at best ([0-9.]+)", output)
    # 22 without training.
    assert score
    assert float(score[1]) > 45
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
