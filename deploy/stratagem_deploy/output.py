"""What commands print, and what the processes of a run write, for people or for programs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import termios
import threading
import time
import tty
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TextIO

import typer
from rich.console import Console
from rich.text import Text

from stratagem_deploy.processes.process import Process, Transcript, describe_exit
from stratagem_deploy.processes.supervision import USAGE_ERROR
from stratagem_proto.configuration.model import variable
from stratagem_proto.errors import StratagemError

# Files and pipes have no width, and what reads them is to find names whole.
_NO_TERMINAL_COLUMNS = 100_000


def table_console() -> Console:
    """Return the standard output: as wide as it is, or so wide that nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=_NO_TERMINAL_COLUMNS)


@contextmanager
def exit_on(code: int, *errors: type[Exception]) -> Iterator[None]:
    """End a command with the message of an error of these kinds, or of the usual, and this code."""
    kinds = errors or (StratagemError, OSError)
    try:
        yield
    except kinds as error:
        typer.echo(f"stratagem: {error}", err=True)
        raise typer.Exit(code) from error


class Display(ABC):
    """Shows the output and the events of the processes of a run as they come.

    `started` is called once, when the servers serve, and `ended` once, at the end. In between
    `of_worker` and `of_server` give each process that starts its outputs, and the others show ends.
    """

    @abstractmethod
    def of_worker(self, name: str, index: int) -> tuple[Transcript, Transcript]:
        """Return where the two outputs of a worker go, perhaps to the same."""

    @abstractmethod
    def of_server(self, name: str, index: int) -> Callable[[str], None]:
        """Return what shows a line of a server's log."""

    @abstractmethod
    def started(self, cluster: Mapping[str, Sequence[str]], credentials: Mapping[str, str]) -> None:
        """Show how `stratagem status` and its like reach the servers.

        Args:
            cluster: The addresses of the tasks by job.
            credentials: The settings by which they may, by name, while the run lasts.
        """

    @abstractmethod
    def restarts(self, process: Process, restart: int, most: int) -> None:
        """Show that a process failed and will be started again, as which restart of how many."""

    @abstractmethod
    def rejoins(self, process: Process, part: str) -> None:
        """Show that a replica has ended, and will be started again as what, as in "the backup"."""

    @abstractmethod
    def failed(self, process: Process) -> None:
        """Show which process failed first, of those that are not started again."""

    @abstractmethod
    def ended(self, exit_code: int, problem: str) -> None:
        """Show how the run has ended; a problem says why there were no workers."""


class JsonLines(Display):
    """Writes an object for each line of a process.

    The first one tells where the servers are, the last one how the run ended.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._failed = ""

    def of_worker(self, name: str, index: int) -> tuple[Transcript, Transcript]:
        output, errors = (
            Transcript(partial(self._line, name, stream)) for stream in ("stdout", "stderr")
        )
        return output, errors

    def of_server(self, name: str, index: int) -> Callable[[str], None]:
        return partial(self._line, name, "stderr")

    def started(self, cluster: Mapping[str, Sequence[str]], credentials: Mapping[str, str]) -> None:
        self._write(cluster=cluster, **credentials)

    def restarts(self, process: Process, restart: int, most: int) -> None:
        ended = describe_exit(process.exit_code or 0)
        self._write(task=process.name, ended=ended, restart=restart, most=most)

    def rejoins(self, process: Process, part: str) -> None:
        self._write(task=process.name, ended=describe_exit(process.exit_code or 0), rejoins=True)

    def failed(self, process: Process) -> None:
        self._failed = process.name

    def ended(self, exit_code: int, problem: str) -> None:
        self._write(
            exit_code=exit_code,
            failed=self._failed,
            problem=problem,
            seconds=round(time.monotonic() - self._began, 3),
        )

    def _line(self, task: str, stream: str, line: str) -> None:
        self._write(task=task, stream=stream, line=line)

    def _write(self, **facts: object) -> None:
        with self._lock:
            print(json.dumps(facts), file=self._stream, flush=True)


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
