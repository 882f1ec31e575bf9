"""Records of runs on this machine: living ones are found, dead ones are dropped."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from stratagem_deploy.processes.resources import RunRecord, on_record, records
from stratagem_proto.errors import PermissionDeniedError
from tests.deploy.processes.process_tree import python
from tests.waiting import eventually

RECORD = RunRecord(pid=7, script="train.py", cluster={"ps": ["127.0.0.1:1"]}, token_file=Path("/t"))
RUN = """
import os, sys, time
from pathlib import Path
from stratagem_deploy.processes.resources import RunRecord, on_record
record = RunRecord(pid=os.getpid(), script="other.py", cluster={}, token_file="t")
with on_record(record):
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files with nobody's records in it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / f"stratagem-{os.getuid()}"


def test_a_record_lasts_as_long_as_its_block_and_is_the_users_alone(
    temporary: Path,
) -> None:
    assert records() == []
    with on_record(RECORD):
        assert records() == [RECORD]
        (file,) = temporary.iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert temporary.stat().st_mode & 0o777 == 0o700
    assert records() == []
    assert list(temporary.iterdir()) == []


def test_the_record_of_a_process_that_was_killed_is_removed(temporary: Path) -> None:
    with python("-c", RUN, output=subprocess.DEVNULL) as process, on_record(RECORD):
        eventually(lambda: len(records()) == 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert records() == [RECORD]
        assert [file.name for file in temporary.iterdir()] == ["7.json"]


def test_a_folder_that_others_may_write_to_is_not_believed(temporary: Path) -> None:
    temporary.mkdir()
    temporary.chmod(0o777)
    with on_record(RECORD):  # and the run goes on
        assert list(temporary.iterdir()) == []
    with pytest.raises(PermissionDeniedError, match="remove it, or set TMPDIR"):
        records()


def test_a_link_to_a_folder_is_not_believed(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    temporary.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionDeniedError, match="no folder of this user alone"):
        records()
