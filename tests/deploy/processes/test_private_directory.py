"""Secrets are readable by their owner alone, and disappear."""

from __future__ import annotations

import signal
import stat
import subprocess
from pathlib import Path

from stratagem_deploy.processes.resources import PrivateDirectory
from tests.deploy.processes.process_tree import python
from tests.full import a_few
from tests.waiting import eventually

OWNER = """
import time
from stratagem_deploy.processes.resources import PrivateDirectory
directory = PrivateDirectory()
directory.write_secret("token", "secret")
print(directory.path, flush=True)
time.sleep(1000)
"""


def test_only_the_owner_may_read_a_secret() -> None:
    directory = PrivateDirectory()
    secret = directory.write_secret("token", "the secret")
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert secret.read_text() == "the secret"
    directory.close()


def test_closing_removes_everything_and_may_be_repeated() -> None:
    directory = PrivateDirectory()
    (directory.path / "folder").mkdir()
    directory.close()
    directory.close()
    assert not directory.path.exists()


@a_few(
    "signum",
    [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP],
    "another process removes it, whatever ended its owner",
)
def test_it_is_removed_when_its_owner_is_ended(signum: signal.Signals) -> None:
    with python("-c", OWNER, output=subprocess.PIPE) as owner:
        assert owner.stdout
        path = Path(owner.stdout.readline().rstrip("\n"))
        assert (path / "token").exists()
        owner.send_signal(signum)
    eventually(lambda: not path.exists())
