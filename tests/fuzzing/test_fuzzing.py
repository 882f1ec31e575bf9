"""Decoders refuse whatever bytes they get, and fuzzing finds one that does not."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzzing.planted import PLANTED

TREE = Path(__file__).parents[2]
SECONDS = 45

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not find_spec("atheris"), reason="there is no atheris for this Python"),
]


def fuzzed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzzing", *arguments, "--folder", str(folder)]
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=240)


def test_decoders_refuse_what_they_cannot_decode_by_an_error_of_ours(tmp_path: Path) -> None:
    done = fuzzed(tmp_path, "all", "--seconds", str(SECONDS))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Done" in done.stderr


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_and_can_be_seen_again(fault: str, tmp_path: Path) -> None:
    target, _ = PLANTED[fault]
    found = fuzzed(tmp_path, target, "--seconds", "60", "--plant", fault)
    assert found.returncode != 0, found.stderr[-4000:]
    (failure,) = tmp_path.glob(f"{target}-*")
    assert fuzzed(tmp_path, target, "--failure", str(failure), "--plant", fault).returncode != 0
    assert fuzzed(tmp_path, target, "--failure", str(failure)).returncode == 0
