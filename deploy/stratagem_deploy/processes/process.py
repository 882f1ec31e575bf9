"""One child process: how it starts, its signals, its end, and what it wrote."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from stratagem_deploy.processes import tether
from stratagem_rpc.lines import LineSplitter, visible

_KEPT_LINES = 30


class Transcript:
    """The lines that one process wrote, of which the last few are kept."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        """Start empty; `show` is called with every line, for instance to print it."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._splitter = LineSplitter()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lock = threading.Lock()
        self._show = show or (lambda line: None)

    def pipe(self) -> tuple[int, int]:
        """Return new descriptors: one to feed from, one for the process."""
        return os.pipe()

    def feed(self, data: bytes) -> None:
        """Take what the process wrote; nothing means that it has ended."""
        text = self._decoder.decode(data)
        lines = self._splitter.feed(text) if data else self._splitter.end()
        shown = [visible(line) for line in lines]
        with self._lock:
            self._lines.extend(shown)
        for line in shown:
            self._show(line)

    def tail(self) -> str:
        """Return the last lines, for a message."""
        with self._lock:
            return "\n".join(self._lines).strip()


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
    """What a process is started with: its program, all of its environment, its outputs."""

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


_READ_BYTES = 65_536
# Output of a process that has ended may be held open by a stranger it started.
_OUTPUT_SECONDS = 1.0


def import_path() -> dict[str, str]:
    """Return an environment in which Python can import what this process can."""
    return {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def share_of_cores(processes: int) -> dict[str, str]:
    """Return an environment in which a process uses its share of the cores.

    Each would start as many threads as there are cores. What our environment says counts.
    """
    cores = max(1, (os.cpu_count() or 1) // max(1, processes))
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores)), **idle_threads()}


def idle_threads() -> dict[str, str]:
    """Return an environment in which threads that wait for a kernel leave their core to others.

    They would spin on it for milliseconds after each kernel. What our environment says counts.
    """
    return {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}


def equal_order_of_sets() -> dict[str, str]:
    """Return an environment in which sets have one order in all processes of all runs.

    Programs build modules, and list files, in the order of sets: all workers have to come to the
    same names and rows, and so has a later run that restores a checkpoint. What our environment
    says counts. Servers, which run no programs of users, keep Python's defence against names that
    an attacker has chosen for their hashes.
    """
    return {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}


def describe_exit(code: int) -> str:
    """Say how a process ended, from its `Popen.returncode`."""
    if code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}"


class Process:
    """A process in a session of its own, which ends no later than this one.

    Attributes:
        name: What messages call it, for instance "ps:0".
        pid: Its process id.
        output: What it wrote to standard output, or to both outputs.
        errors: What it wrote to standard error; the same object as `output` unless they are kept
            apart.
    """

    def __init__(  # noqa: PLR0913 - independent settings, most by name
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: Transcript | None = None,
        errors: Transcript | None = None,
        on_end: Callable[[Process], None] | None = None,
        start: Starter = start_program,
    ) -> None:
        """Start it.

        Args:
            name: What messages call it.
            command: Path of the program, and its arguments.
            environment: Added to this process's own.
            output: Where its standard output goes.
            errors: Where its standard error goes, by default to `output` too.
            on_end: Called from another thread, once, when it has ended.
            start: Starts it.
        """
        self.name = name
        self.output = output or Transcript()
        self.errors = errors or self.output
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._on_end = on_end
        self._exit_code: int | None = None
        pipes = {transcript: transcript.pipe() for transcript in {self.output, self.errors}}
        outputs = pipes[self.output][1], pipes[self.errors][1]
        self._child = start(Start(command, os.environ | (environment or {}), *outputs))
        self.pid = self._child.pid
        pumps = []
        for transcript, (reader, writer) in pipes.items():
            os.close(writer)
            pumps.append(_daemon(_pump, reader, transcript))
        _daemon(self._reap, pumps)

    @property
    def exit_code(self) -> int | None:
        """None while it runs, then as `Popen.returncode`: negative for a signal."""
        return self._exit_code if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, at most `timeout` seconds; say whether it has."""
        return self._ended.wait(timeout)

    def send(self, signum: int) -> None:
        """Send a signal, as a terminal, a supervisor or the kernel would.

        SIGTERM is for the program, which may want to end its own children in order; all others
        reach its children too.
        """
        with self._lock:
            if self._exit_code is not None:
                return
            if signum != signal.SIGTERM:
                # One that was forked a moment ago has no group yet, and no children either.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signum)
                    return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def end(self, grace: float) -> None:
        """End it by SIGTERM, or by SIGKILL if that takes over `grace` seconds."""
        self.send(signal.SIGTERM)
        if not self.wait(grace):
            self.send(signal.SIGKILL)
            self.wait()

    def tail(self) -> str:
        """Return the last lines that it wrote, of its errors if it wrote any."""
        return self.errors.tail() or self.output.tail()

    def _reap(self, pumps: Sequence[threading.Thread]) -> None:
        # Not reaped yet, its id still belongs to it, and so does its process group.
        self._child.await_end()
        with self._lock:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._exit_code = self._child.reap()
        for pump in pumps:
            pump.join(_OUTPUT_SECONDS)
        self._ended.set()
        if self._on_end:
            self._on_end(self)


def _pump(reader: int, transcript: Transcript) -> None:
    """Feed a transcript until the writers or the reader of its copy are gone."""
    # That the last writer has closed a pseudo-terminal is an error of its reader.
    with contextlib.suppress(OSError):
        while data := os.read(reader, _READ_BYTES):
            transcript.feed(data)
    os.close(reader)
    transcript.feed(b"")


def _daemon(target: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread
