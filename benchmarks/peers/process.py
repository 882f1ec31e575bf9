"""A peer: a program in an interpreter of its own that measures itself when asked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

Measure = Callable[[float], float]
"""Measures for about so many seconds; returns a figure."""

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 300.0
_MOST_SECONDS = 60.0
_END_SECONDS = 20.0
_SHOWN_BYTES = 4_000


class Peer:
    """The program, as who asks it sees it."""

    def __init__(self, name: str, connection: Connection, log: IO[bytes]) -> None:
        self._name = name
        self._connection = connection
        self._log = log

    def measure(self, name: str, seconds: float) -> float:
        """Lets it measure something for about that long, and returns the figure.

        Raises:
            RuntimeError: It ended, or did not answer; with what it wrote last.
        """
        self._connection.send((name, seconds))
        return self.answer(seconds + _MOST_SECONDS)

    def answer(self, seconds: float) -> float:
        """Waits for its next answer; raises as `measure`."""
        try:
            if self._connection.poll(seconds):
                figure: float = self._connection.recv()
                return figure
        except EOFError:
            pass
        raise RuntimeError(f"{self._name} does not answer; it wrote\n{self._written()}")

    def _written(self) -> str:
        self._log.seek(0)
        return self._log.read()[-_SHOWN_BYTES:].decode(errors="replace")


@contextmanager
def peer(python: Path, module: str, *arguments: str) -> Iterator[Peer]:
    """A program that calls `serve`, started and ready.

    Args:
        python: The interpreter, of the environment that has what it needs.
        module: The program.
        arguments: Its arguments, behind the one that `serve` needs.

    Raises:
        RuntimeError: It did not start.
    """
    mine, theirs = Pipe()
    with mine, TemporaryFile() as log:
        process = subprocess.Popen(
            [python, "-m", module, str(theirs.fileno()), *arguments],
            cwd=_ROOT,
            pass_fds=[theirs.fileno()],
            stdout=log,
            stderr=log,
        )
        theirs.close()
        try:
            started = Peer(module, mine, log)
            started.answer(_START_SECONDS)
            yield started
        finally:
            # It ends by itself once nobody can ask it.
            mine.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()
            process.wait()


def serve(measures: Mapping[str, Measure]) -> None:
    """Answers, in the process of a peer, until who asks has gone."""
    with Connection(int(sys.argv[1])) as connection:
        connection.send(0.0)
        try:
            while True:
                name, seconds = connection.recv()
                connection.send(measures[name](seconds))
        except EOFError:
            return
