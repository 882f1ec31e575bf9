"""The run of a script as lines of JSON, for another program to read."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TextIO

from stratagem_deploy.output.display import Display
from stratagem_deploy.processes.process import Process, describe_exit
from stratagem_deploy.processes.transcript import Transcript


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
