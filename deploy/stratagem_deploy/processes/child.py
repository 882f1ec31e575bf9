"""Child processes as the kernel sees them, and the usual way to start one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from stratagem_deploy.processes import tether


class Child(Protocol):
    """A process whose id belongs to it until it is reaped."""

    @property
    def pid(self) -> int:
        """Its process id, which is that of its session and process group too."""

    def await_end(self) -> None:
        """Wait until it has ended; it is not reaped yet."""

    def reap(self) -> int:
        """Let go of its id; return how it ended, as `Popen.returncode`."""


@dataclass(frozen=True)
class Start:
    """What a process is started with.

    Attributes:
        command: Path of the program, and its arguments.
        environment: All of its environment.
        output: Descriptor of its standard output.
        errors: Descriptor of its standard error.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    output: int
    errors: int


Starter = Callable[[Start], Child]
"""Starts a process in a session of its own, which the kernel ends together with this process."""

# The kernel's word "parent" means the thread that started a process. This one lives as long as the
# interpreter, so that a short-lived thread may start a server.
_thread = ThreadPoolExecutor(1, thread_name_prefix="stratagem-starter")


class _Program:
    """A program that was started by this process."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid

    def await_end(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def reap(self) -> int:
        return self._popen.wait()


def start_program(start: Start, *, inherited: Sequence[int] = ()) -> Child:
    """Start a program; `inherited` are further descriptors that it keeps."""
    tethered = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid())]
    popen = _thread.submit(
        subprocess.Popen,
        [*tethered, *start.command],
        env=start.environment,
        stdin=subprocess.DEVNULL,
        stdout=start.output,
        stderr=start.errors,
        # Ctrl-C at the terminal comes to this process, which passes it on once.
        start_new_session=True,
        pass_fds=inherited,
    ).result()
    return _Program(popen)
