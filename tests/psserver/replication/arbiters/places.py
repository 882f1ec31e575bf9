"""Where views are kept, for tests that are the same for all arbiters."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_psserver.replication.arbiter import Arbiter
from stratagem_psserver.replication.registers import arbiter_of
from stratagem_psserver.settings import ServerSettings
from tests.psserver.replication.arbiters.etcd import Etcd
from tests.psserver.replication.arbiters.lease_server import LeaseServer

# More than any call needs on a machine with much else to do.
PATIENCE = 30.0


def replica(index: int) -> Replica:
    return Replica(index=index, instance=bytes([index]) * 16, address=f"ps-{index}:2222")


def view(epoch: int, primary: int = 0, backup: int | None = None) -> View:
    """A view with replicas that their numbers tell apart."""
    following = None if backup is None else replica(backup)
    return View(epoch=epoch, primary=replica(primary), backup=following)


def settings_of(arbiter: str, task: int = 0) -> ServerSettings:
    return ServerSettings(task=task, replicas=2, arbiter=arbiter)


class Place(Protocol):
    """Something that keeps views.

    Attributes:
        name: What --arbiter says of it.
    """

    name: str

    def damage(self) -> None:
        """Puts something else where the view of task 0 is."""

    def out_of_reach(self) -> AbstractContextManager[object]:
        """Lets no call of `replace` succeed while the block runs."""


def arbiter_at(place: Place, task: int = 0, seconds: float = PATIENCE) -> Arbiter:
    return arbiter_of(settings_of(place.name, task), seconds)


class Folder:
    """A folder of this host."""

    def __init__(self, path: Path) -> None:
        self._path, self.name = path, f"file:{path}"

    def damage(self) -> None:
        (self._path / "ps-0.json").write_text('{"epoch": ')

    def out_of_reach(self) -> AbstractContextManager[object]:
        return holding(self._path / "ps-0.lock")


_HOLDING = """
import fcntl, sys
with open(sys.argv[1], "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("process 1 of elsewhere", file=lock, flush=True)
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Lets another process have a lock while the block runs."""
    command = [sys.executable, "-c", _HOLDING, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as popen:
        assert popen.stdout is not None
        assert popen.stdout.readline() == b"locked\n"
        try:
            yield popen
        finally:
            popen.kill()


class Kubernetes:
    """An API server that knows Leases."""

    name = "kubernetes:training/movies"

    def __init__(self, server: LeaseServer) -> None:
        self._server = server

    def damage(self) -> None:
        metadata = self._server.leases["movies-ps-0"]["metadata"]
        metadata["annotations"]["stratagem/view"] = "{}"

    @contextmanager
    def out_of_reach(self) -> Iterator[None]:
        self._server.answering.clear()
        try:
            yield
        finally:
            self._server.answering.set()


class Keys:
    """Keys of an etcd with a common prefix."""

    def __init__(self, etcd: Etcd, prefix: str) -> None:
        self._etcd, self._prefix = etcd, prefix
        self.name = f"etcd:127.0.0.1:{etcd.port}/{prefix}"

    def damage(self) -> None:
        entry = {"key": f"{self._prefix}/ps-0", "value": "\udcff"}
        encoded = {
            name: base64.b64encode(text.encode(errors="surrogateescape")).decode()
            for name, text in entry.items()
        }
        url = f"http://127.0.0.1:{self._etcd.port}/v3/kv/put"
        with urllib.request.urlopen(url, json.dumps(encoded).encode()) as answer:
            assert answer.status == 200

    def out_of_reach(self) -> AbstractContextManager[None]:
        return self._etcd.suspended()
