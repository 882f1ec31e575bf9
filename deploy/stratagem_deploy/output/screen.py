"""The terminal that several processes write to, one line at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import termios
import threading
import tty
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TextIO

from rich.console import Console
from rich.text import Text

from stratagem_deploy.output.display import Display
from stratagem_deploy.processes.process import Process, describe_exit
from stratagem_deploy.processes.supervision import USAGE_ERROR
from stratagem_deploy.processes.transcript import Transcript
from stratagem_proto.configuration.model import variable

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue")
_ERASE_LINE = b"\r\x1b[K"
_LONGEST_OPEN_LINE = 4_096  # bytes


class Screen(Display):
    """Keeps the lines of the other processes apart from the main program's output.

    The main program may have left its line open, for instance for a progress bar; the line of
    another process is then put above it.
    """

    def __init__(self, stream: TextIO, verbose: bool = False) -> None:
        self._verbose = verbose
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._stream = stream
        self._lock = threading.Lock()
        self._open_line = b""

    def copy(self, data: bytes) -> None:
        """Write output of the main program as it is."""
        with self._lock:
            self._write(data)
            line = (self._open_line + data).rpartition(b"\n")[2]
            line = line.rstrip(b"\r").rpartition(b"\r")[2]
            self._open_line = line[-_LONGEST_OPEN_LINE:]

    def of_worker(self, name: str, index: int) -> tuple[Transcript, Transcript]:
        """Return where a worker's output goes; the chief's is the run's own."""
        if index > 0:
            both = Transcript(self.labelled(name, index))
            return both, both
        errors = Copied(2, self.copy)
        # One pipe for both keeps their order where a reader could see it.
        if os.path.sameopenfile(1, 2):
            return errors, errors
        return Copied(1, partial(write_all, 1)), errors

    def of_server(self, name: str, index: int) -> Callable[[str], None]:
        return self.labelled(name, index)

    def started(self, cluster: Mapping[str, Sequence[str]], credentials: Mapping[str, str]) -> None:
        if self._verbose and cluster["ps"]:
            servers = " ".join(cluster["ps"]).replace(",", " ")
            environment = " ".join(
                f"{variable(name)}={value}" for name, value in credentials.items()
            )
            watch = f"{environment} stratagem top {servers}"
            self.say(f"stratagem: to watch the servers: {watch}")

    def restarts(self, process: Process, restart: int, most: int) -> None:
        ended = describe_exit(process.exit_code or 0)
        message = f"stratagem: {process.name} failed, with {ended}, and is started"
        self.say(f"{message} again: restart {restart} of {most}", "bold yellow")

    def rejoins(self, process: Process, part: str) -> None:
        ended = describe_exit(process.exit_code or 0)
        message = f"stratagem: {process.name} ended, with {ended}, and is started again"
        self.say(f"{message} as {part}", "bold yellow")

    def failed(self, process: Process) -> None:
        """Say how it ended, above the end of its log."""
        ended = describe_exit(process.exit_code or 0)
        if process.exit_code == USAGE_ERROR:
            ended += ", a wrong call that no restart mends"
        message = f"stratagem: {process.name} failed first, with {ended}"
        tail = process.tail()
        end = "; the end of its log:" if tail else " and without a word"
        self.say(message + end, "bold red")
        show = self.labelled(process.name, 0)
        for line in tail.splitlines():
            show(line)

    def ended(self, exit_code: int, problem: str) -> None:
        if problem:
            self.say(f"stratagem: {problem}")

    def labelled(self, name: str, index: int) -> Callable[[str], None]:
        """Return what prints a line behind a process's name, in its colour."""
        label = (f"{name} | ", _COLOURS[index % len(_COLOURS)])
        return lambda line: self._print(Text.assemble(label, Text.from_ansi(line)))

    def say(self, message: str, style: str = "") -> None:
        """Print a message of our own."""
        self._print(Text(message, style))

    def _print(self, text: Text) -> None:
        with self._lock:
            if not self._open_line:
                self._console.print(text)
            elif self._console.is_terminal:
                self._write(_ERASE_LINE)
                self._console.print(text)
                self._write(self._open_line)
            else:
                self._write(b"\n")
                self._console.print(text)
                self._open_line = b""

    def _write(self, data: bytes) -> None:
        write_all(self._stream.fileno(), data)


class Copied(Transcript):
    """A transcript whose bytes are written on as they come, to a file or terminal."""

    def __init__(self, descriptor: int, copy: Callable[[bytes], None]) -> None:
        """Start empty.

        Args:
            descriptor: Where the copy goes; the process sees a terminal if it is one.
            copy: Writes there.
        """
        super().__init__()
        self._descriptor = descriptor
        self._terminal: int | None = None
        self._copy = copy

    def pipe(self) -> tuple[int, int]:
        if not os.isatty(self._descriptor):
            return super().pipe()
        reader, writer = pty.openpty()
        tty.setraw(writer)  # the real terminal translates the line ends
        self._terminal = reader
        self.fit()
        return reader, writer

    def fit(self) -> None:
        """Give the terminal that the process sees the size of the real one."""
        if self._terminal is None:
            return
        # Its reader closes it when the process has ended.
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(self._descriptor, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def feed(self, data: bytes) -> None:
        self._copy(data)
        super().feed(data)


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
