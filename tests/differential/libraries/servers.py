"""The servers of a cluster of TensorFlow, with what coordinates its workers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any

import tensorflow as tf

_PROGRAM = """
import json, sys
import tensorflow as tf
spec, job, task = json.loads(sys.argv[1])
tf.distribute.Server(tf.train.ClusterSpec(spec), job, task, protocol="grpc").join()
"""

_END_SECONDS = 10


def free_address() -> str:
    """Return an address of this machine on which nothing listens."""
    with socket.create_server(("localhost", 0)) as listener:
        return f"localhost:{listener.getsockname()[1]}"


class ServerThreads:
    """All servers of a cluster in this process, for as long as it lives.

    Attributes:
        strategy: Of the program that coordinates them.
        coordinator: Of that program.
    """

    strategy: Any
    coordinator: Any

    def __init__(self, spec: Any) -> None:
        self._servers = [
            tf.distribute.Server(spec, job_name=job, task_index=task)
            for job in spec.jobs
            for task in spec.task_indices(job)
        ]

    def __enter__(self) -> ServerThreads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._servers.clear()


class ServerProcesses:
    """A process for each server of a cluster, which can be lost.

    Attributes:
        strategy: Of the program that coordinates them.
        coordinator: Of that program.
    """

    strategy: Any
    coordinator: Any

    def __init__(self, spec: Any) -> None:
        self._spec = spec.as_dict()
        self._processes = {
            (job, task): self._start(job, task)
            for job in spec.jobs
            for task in spec.task_indices(job)
        }

    def __enter__(self) -> ServerProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for job, task in [*self._processes]:
            self._end(job, task)

    def lose_worker(self, index: int) -> None:
        self._end("worker", index)

    def return_worker(self, index: int) -> None:
        self._processes["worker", index] = self._start("worker", index)

    def lose_server(self) -> None:
        self._end("ps", 0)

    def _start(self, job: str, task: int) -> subprocess.Popen[bytes]:
        what = json.dumps([self._spec, job, task])
        return subprocess.Popen([sys.executable, "-c", _PROGRAM, what])

    def _end(self, job: str, task: int) -> None:
        process = self._processes.pop((job, task))
        process.kill()
        process.wait(_END_SECONDS)
