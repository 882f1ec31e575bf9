"""Running a program, and reading what it prints at its end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_METRIC = re.compile(r"^held-out (.+): (-?\d\S*)$", re.MULTILINE)
_SECONDS = 580.0
_LAST_LINES = 15


@dataclass(frozen=True)
class Outcome:
    """How a program has ended.

    Attributes:
        metric: What it has measured.
        values: Those of the workers, in their order.
        seconds: From start to end, with the start of its processes.
    """

    metric: str
    values: Sequence[float]
    seconds: float


class TrialError(Exception):
    """A program has failed, or printed no metric; says what it printed last."""


def run_plainly(script: Path, folder: Path) -> Outcome:
    """Run a program by itself, in a folder of its own."""
    text, seconds = _run([sys.executable, str(script)], folder)
    return _outcome([text], seconds)


def run_on_servers(script: Path, folder: Path) -> Outcome:
    """Run a program on two servers and two workers, each a process."""
    starter = [sys.executable, "-m", "stratagem_deploy.cli", "run", "--json"]
    text, seconds = _run([*starter, "--ps", "2", "--workers", "2", str(script)], folder)
    each = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    said = ["", ""]
    for one in each:
        task = str(one.get("task", ""))
        if task in ("worker:0", "worker:1"):
            said[int(task[-1])] += f"{one.get('line', '')}\n"
    return _outcome(said, seconds)


def _run(command: Sequence[str], folder: Path) -> tuple[str, float]:
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise TrialError(f"it took longer than {_SECONDS:g} s") from error
    if done.returncode:
        told = f"{done.stdout}\n{done.stderr}".strip().splitlines()[-_LAST_LINES:]
        raise TrialError(f"exit code {done.returncode}\n" + "\n".join(told))
    return done.stdout, time.monotonic() - began


def _outcome(said: Sequence[str], seconds: float) -> Outcome:
    found = [_METRIC.findall(each) for each in said]
    if not all(found):
        raise TrialError(f"it printed no metric; its last lines are\n{said[0][-1000:]}")
    return Outcome(found[0][-1][0], [float(each[-1][1]) for each in found], seconds)
