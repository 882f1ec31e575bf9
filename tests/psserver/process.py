"""A server as a process of its own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stratagem_deploy.processes.process import import_path
from tests.waiting import eventually

PATIENCE = 60.0


@dataclass(frozen=True)
class ServerProcess:
    """A running server."""

    address: str
    health_address: str
    popen: subprocess.Popen[str]
    said: Path

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self.said.read_text(encoding="utf-8")

    def thread_count(self) -> int:
        return len(os.listdir(f"/proc/{self.popen.pid}/task"))


def launch(
    *arguments: str,
    program: str = "stratagem_psserver",
    files: int | None = None,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Starts `python -m` of a server, which may open so many files."""

    def limited() -> None:
        assert files is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    return subprocess.Popen(
        [sys.executable, "-m", program, *arguments],
        env=os.environ | import_path(),
        # With a function, gRPC takes part in the fork, and may write to the child's log.
        preexec_fn=limited if files is not None else None,
        stderr=stderr,
        text=True,
    )


@contextmanager
def serving(
    directory: Path,
    *arguments: str,
    program: str = "stratagem_psserver",
    files: int | None = None,
) -> Iterator[ServerProcess]:
    """Runs a server until the end of the body; the rest is as for `launch`."""
    ready, said = directory / "ready.json", directory / "log.jsonl"
    ready.unlink(missing_ok=True)
    # A pipe that nobody reads would hold a server up once it is full.
    with said.open("w") as log:
        told = ("--ready-file", str(ready), *arguments)
        popen = launch(*told, program=program, files=files, stderr=log.fileno())
    try:
        eventually(lambda: ready.exists() or popen.poll() is not None)
        assert popen.poll() is None, said.read_text(encoding="utf-8")
        facts = json.loads(ready.read_text(encoding="utf-8"))
        assert facts["pid"] == popen.pid
        yield ServerProcess(facts["address"], facts["health_address"], popen, said)
    finally:
        popen.kill()
        popen.wait()
