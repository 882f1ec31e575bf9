"""Watching processes from outside: their children, their ends, the command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from stratagem_deploy.processes.process import import_path


def descendants(pid: int) -> set[int]:
    """The processes that a process started, and those that they started."""
    children: set[int] = set()
    # A process or a thread may end while it is looked at.
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                children |= set(map(int, (task / "children").read_text().split()))
    return children.union(*map(descendants, children))


def tasks(pid: int) -> set[int]:
    """Those of the descendants that are no fork servers, which stay for further clusters."""
    return descendants(pid) - fork_servers(pid)


def fork_servers(pid: int) -> set[int]:
    """Those of the descendants that fork others."""
    return {each for each in descendants(pid) if "processes.forker" in command(each)}


def command(pid: int) -> str:
    """The command line of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_alive(pid: int) -> bool:
    """Whether it runs; a process that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@contextmanager
def python(
    *arguments: str, environment: Mapping[str, str] | None = None, output: int
) -> Iterator[subprocess.Popen[str]]:
    """Runs Python with our import path, in a process group of its own, in a block."""
    ours = import_path()
    with subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | ours | dict(environment or {}),
        stdout=output,
        stderr=output,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
