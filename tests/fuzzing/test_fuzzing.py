"""Decoders refuse whatever bytes they get, and fuzzing finds one that does not."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzzing.planted import PLANTED

TREE = Path(__file__).parents[2]
SECONDS = 20

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not find_spec("atheris"), reason="there is no atheris for this Python"),
]


def fuzzed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzzing", *arguments, "--folder", str(folder)]
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=280)


def test_decoders_refuse_what_they_cannot_decode_by_an_error_of_ours(tmp_path: Path) -> None:
    done = fuzzed(tmp_path, "all", "--seconds", str(SECONDS))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Done" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    target, _ = PLANTED[fault]
    found = fuzzed(tmp_path, target, "--seconds", "200", "--plant", fault)
    assert found.returncode != 0, found.stderr[-4000:]
    assert [*tmp_path.glob(f"{target}-*")]


@pytest.mark.long
def test_an_input_that_is_a_fault_can_be_decoded_again(tmp_path: Path) -> None:
    failure, fault = tmp_path / "failure", "a number is taken for bytes"
    # Two chunks, one of them as a number of 32 bits.
    failure.write_bytes(b"\x12\0\x95\0\x12\0\x10\0\xc5\0\x0a\0\x12\0")
    again = PLANTED[fault][0], "--failure", str(failure)
    assert fuzzed(tmp_path, *again, "--plant", fault).returncode != 0
    assert fuzzed(tmp_path, *again).returncode == 0
