"""A peer: a program in an interpreter of its own that measures itself when asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

Answer = Callable[[str, float], float]
"""Measures what it is asked for about so many seconds; returns a figure."""

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120.0
_MOST_SECONDS = 60.0
_END_SECONDS = 10.0
_SHOWN_BYTES = 2_000

# Whoever computes does it in one thread, and where all others do.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@dataclass(frozen=True)
class Program:
    """What is started.

    Attributes:
        python: The interpreter, of the environment that has what it needs.
        module: The program, which calls `serve`.
        arguments: Its arguments, behind the one that `serve` needs.
        settings: Environment variables that it has besides ours.
        restless: Whether it uses processors while nobody asks it anything. It is stopped then, with
            all processes that it has started.
    """

    python: Path
    module: str
    arguments: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    restless: bool = False


class Peer:
    """The program, as who asks it sees it. A context manager, which ends it."""

    def __init__(self, program: Program) -> None:
        """Begins to start it."""
        self._program = program
        self._log = TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._connection, theirs = Pipe()
        with theirs:
            self._process = _process(program, theirs, self._log)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def measure(self, question: str, seconds: float) -> float:
        """Lets it measure something for about that long, and returns the figure.

        Raises:
            RuntimeError: It ended, or did not answer; with what it wrote last.
        """
        with self._explaining(), self._awake():
            self._connection.send((question, seconds))
            return self._answer(seconds + _MOST_SECONDS)

    def wait_until_ready(self) -> None:
        """Waits until it can be asked; raises as `measure`."""
        with self._explaining():
            self._answer(_START_SECONDS)
            if self._program.restless:
                os.killpg(self._process.pid, signal.SIGSTOP)

    def dismiss(self) -> None:
        """Lets it end by itself, as it does once nobody can ask it."""
        if self._program.restless:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGCONT)
        self._connection.close()

    def end(self) -> None:
        """Ends it, and the processes that it has started."""
        self.dismiss()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    @contextmanager
    def _awake(self) -> Iterator[None]:
        if not self._program.restless:
            yield
            return
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGSTOP)

    def _answer(self, seconds: float) -> float:
        if not self._connection.poll(seconds):
            raise TimeoutError
        figure: float = self._connection.recv()
        return figure

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise self._silence() from error
        except (EOFError, OSError) as error:
            # Why it ends, it writes last.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            raise self._silence() from error

    def _silence(self) -> RuntimeError:
        name = self._program.module
        return RuntimeError(f"{name} does not answer; it wrote\n{self._written()}")

    def _written(self) -> str:
        self._log.seek(0)
        return self._log.read()[-_SHOWN_BYTES:].decode(errors="replace")


def _process(program: Program, connection: Connection, log: IO[bytes]) -> subprocess.Popen[bytes]:
    descriptor = connection.fileno()
    return subprocess.Popen(
        [program.python, "-m", program.module, str(descriptor), *program.arguments],
        cwd=_ROOT,
        env={**os.environ, **_ONE_THREAD, **program.settings},
        pass_fds=[descriptor],
        stdout=log,
        stderr=log,
        # A group of its own, so that it can be stopped as a whole.
        start_new_session=True,
    )


def serve(contestant: Callable[..., AbstractContextManager[Answer]]) -> None:
    """Answers, in the process of a peer, until who asks has gone.

    Args:
        contestant: Gets the program's further arguments, and yields what answers.
    """
    with Connection(int(sys.argv[1])) as asking, contestant(*sys.argv[2:]) as answer:
        asking.send(0.0)
        with suppress(EOFError):
            while True:
                question, seconds = asking.recv()
                asking.send(answer(question, seconds))
