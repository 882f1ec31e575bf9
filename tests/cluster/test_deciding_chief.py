"""A program that is killed, and that decides as the chief which server serves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stratagem_deploy.clusters.servers import replica_standings
from stratagem_proto.v1.replication_pb2 import STANDING_BACKUP, STANDING_PRIMARY
from tests.conftest import TOKEN
from tests.psserver.process import ServerProcess, serving
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

PATIENCE = 300.0

PROGRAM = """
import logging, sys, torch
from pathlib import Path
from stratagem import ParameterServerStrategy, Variable
counting, enough = map(Path, sys.argv[1:])
logging.basicConfig(filename=counting.with_suffix(".log"), level=logging.INFO)
with ParameterServerStrategy() as strategy:
    with strategy.scope():
        counter = Variable(torch.tensor(0), False, name="counter")
    begun = int(counter.numpy())
    counted = 0
    while not enough.exists():
        counter.assign_add(1)
        counted += 1
        counting.touch()
    print("began with", begun > 0, "lost", begun + counted - int(counter.numpy()))
"""

DECIDES = "decides which replica of /job:ps/task:0 serves"


class Servers:
    """The two replicas of one task, as processes."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._token = folder / "token"
        self._token.write_text(TOKEN)
        self._token.chmod(0o600)
        self._running = [stack.enter_context(self._started(folder, index)) for index in range(2)]
        self.addresses = [server.address for server in self._running]

    @contextmanager
    def _started(self, folder: Path, index: int) -> Iterator[ServerProcess]:
        own = folder / f"replica-{index}"
        own.mkdir()
        options = ["--replicas", 2, "--replica", index, "--arbiter", "chief"]
        arguments = ["--token-file", self._token, "--bind", "127.0.0.1:0", *options]
        with serving(own, *map(str, arguments)) as server:
            yield server

    def environment(self) -> dict[str, str]:
        """That of the chief's program."""
        cluster = {"ps": [",".join(self.addresses)], "worker": ["localhost:1"]}
        task = {"type": "worker", "index": 0}
        config = json.dumps({"cluster": cluster, "task": task})
        return {**os.environ, "TF_CONFIG": config, "STRATAGEM_TOKEN_FILE": str(self._token)}

    def standings(self) -> list[int]:
        found = replica_standings(self.addresses, TOKEN, 5.0)
        return [one.standing for one in found if one is not None]

    def await_backup(self) -> None:
        eventually(lambda: {STANDING_PRIMARY, STANDING_BACKUP} == {*self.standings()}, PATIENCE)

    def kill_primary(self) -> None:
        self._running[self.standings().index(STANDING_PRIMARY)].send(signal.SIGKILL)


@contextmanager
def program(servers: Servers, counting: Path, enough: Path) -> Iterator[subprocess.Popen[str]]:
    """The chief's program, once it has counted and decides."""
    command = [sys.executable, "-c", PROGRAM, str(counting), str(enough)]
    with subprocess.Popen(
        command, env=servers.environment(), stdout=subprocess.PIPE, text=True
    ) as popen:
        try:
            eventually(counting.exists, PATIENCE)
            log = counting.with_suffix(".log")
            eventually(lambda: DECIDES in log.read_text(), PATIENCE)
            yield popen
        finally:
            popen.kill()


def test_a_chief_that_was_killed_decides_again_when_it_is_started_again(tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    with ExitStack() as stack:
        servers = Servers(tmp_path, stack)
        with program(servers, tmp_path / "first", enough):
            servers.await_backup()
        with program(servers, tmp_path / "second", enough) as chief:
            servers.kill_primary()
            (tmp_path / "second").unlink()
            eventually((tmp_path / "second").exists, PATIENCE)
            eventually(lambda: STANDING_PRIMARY in servers.standings(), PATIENCE)
            enough.touch()
            output, _ = chief.communicate(timeout=PATIENCE)
    assert output == "began with True lost 0\n"
