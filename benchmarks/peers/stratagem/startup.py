"""How long things take to start: `... benchmarks.peers.stratagem.startup FD`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers.process import Answer, serve
from stratagem_deploy import LocalCluster

# Nothing that torch needs counts.
_IMPORT = """
import time, torch
start = time.perf_counter()
import stratagem
print(time.perf_counter() - start)
"""


def answer(question: str, seconds: float) -> float:
    """Seconds of "import" behind `import torch`, or until a "server" can be used."""
    return {"import": _import, "server": _server}[question]()


def _import() -> float:
    program = [sys.executable, "-c", _IMPORT]
    return float(subprocess.run(program, check=True, capture_output=True).stdout)


def _server() -> float:
    start = time.perf_counter()
    with LocalCluster(ps=1, workers=1, processes=True):
        return time.perf_counter() - start


@contextmanager
def contestant() -> Iterator[Answer]:
    """What starts things."""
    yield answer


if __name__ == "__main__":
    serve(contestant)
