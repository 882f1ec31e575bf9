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

    def thread_count(self) -> int:
        return len(os.listdir(f"/proc/{self.popen.pid}/task"))


def launch(
    *arguments: str, program: str = "stratagem_psserver", files: int | None = None
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
        stderr=subprocess.PIPE,
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
    ready = directory / "ready.json"
    ready.unlink(missing_ok=True)
    popen = launch("--ready-file", str(ready), *arguments, program=program, files=files)
    try:
        facts = json.loads(_content(ready, popen))
        assert facts["pid"] == popen.pid
        yield ServerProcess(facts["address"], facts["health_address"], popen)
    finally:
        popen.kill()
        popen.communicate()


def _content(ready: Path, popen: subprocess.Popen[str]) -> str:
    eventually(lambda: ready.exists() or popen.poll() is not None)
    assert popen.poll() is None, popen.communicate()[1]
    return ready.read_text(encoding="utf-8")
