"""One child process: its signals, its end, and what it wrote."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from stratagem_deploy.processes.child import Start, Starter, start_program
from stratagem_deploy.processes.transcript import Transcript

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
        pipes = {transcript: transcript.pipe() for transcript in self._transcripts}
        outputs = pipes[self.output][1], pipes[self.errors][1]
        self._child = start(Start(command, os.environ | (environment or {}), *outputs))
        self.pid = self._child.pid
        self._attend(pipes)

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
            if signum == signal.SIGTERM or not _reaches_group(self.pid, signum):
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

    @property
    def _transcripts(self) -> set[Transcript]:
        return {self.output, self.errors}

    def _attend(self, pipes: Mapping[Transcript, tuple[int, int]]) -> None:
        pumps = []
        for transcript, (reader, writer) in pipes.items():
            os.close(writer)
            pumps.append(_daemon(_pump, reader, transcript))
        _daemon(self._reap, pumps)

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


def _reaches_group(leader: int, signum: int) -> bool:
    """Send a signal to a process group; return whether there is one.

    A process that was forked a moment ago has none of its own yet, and no children either.
    """
    try:
        os.killpg(leader, signum)
    except ProcessLookupError:
        return False
    return True


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
