"""A server as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.limits import ControlGroup
from stratagem_deploy.processes.fork_server import start_forked
from stratagem_deploy.processes.process import Process, Transcript, import_path, start_program
from tests.waiting import eventually

PATIENCE = 60.0


@dataclass(frozen=True)
class ServerProcess:
    """A running server."""

    address: str
    health_address: str
    _process: Process
    _lines: list[str]

    @property
    def log(self) -> str:
        """What it has written so far."""
        return "\n".join(self._lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, signum: int) -> None:
        self._process.send(signum)

    def exit_code(self) -> int:
        """How it ends, as `Popen.returncode`; waits until it does."""
        assert self._process.wait(PATIENCE)
        code = self._process.exit_code
        assert code is not None
        return code

    def thread_count(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))


def launch(*arguments: str, program: str = "stratagem_psserver") -> subprocess.Popen[str]:
    """Starts `python -m` of a server."""
    command = [sys.executable, "-m", program, *arguments]
    environment = os.environ | import_path()
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def _begun(
    command: list[str], files: int | None, groups: Sequence[ControlGroup], transcript: Transcript
) -> Process:
    start = start_forked
    for group in groups:
        command, start = group.joined(command), start_program
    if files is not None:
        # The fork server may open more.
        command = ["/bin/sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        start = start_program
    return Process("server", command, environment=import_path(), output=transcript, start=start)


@contextmanager
def serving(
    directory: Path,
    *arguments: str,
    module: str = "stratagem_psserver.__main__",
    files: int | None = None,
    groups: Sequence[ControlGroup] = (),
) -> Iterator[ServerProcess]:
    """Runs the function `main` of a module, a server, until the end of the body.

    It may open so many files, and use what control groups let it use.
    """
    ready = directory / "ready.json"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", module, "--ready-file", str(ready), *arguments]
    lines: list[str] = []
    process = _begun(command, files, groups, Transcript(lines.append))
    try:
        eventually(lambda: ready.exists() or process.exit_code is not None)
        assert process.exit_code is None, "\n".join(lines)
        facts = json.loads(ready.read_text(encoding="utf-8"))
        assert facts["pid"] == process.pid
        yield ServerProcess(facts["address"], facts["health_address"], process, lines)
    finally:
        process.end(grace=0)
