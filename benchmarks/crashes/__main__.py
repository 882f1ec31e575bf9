"""`python -m benchmarks.crashes`: kills the server of each peer, and tells what is there then."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.crashes.trial import UPDATES, Finding
from benchmarks.harness.environments import Foreign, missing, python_of
from benchmarks.harness.table import Table

_FOLDER = Path("runs/benchmarks")
_SECONDS = 300.0


class Subject(NamedTuple):
    """Whose server is killed.

    Attributes:
        name: In the table.
        peer: Whose environment it needs; None for ours.
        arguments: What Python is to run.
    """

    name: str
    peer: Foreign | None
    arguments: Sequence[str]


OURS = [
    Subject(f"Stratagem, `{each}`", None, ["benchmarks.crashes.ours", each])
    for each in ("none", "snapshot", "log")
]
_PEERS = [
    Subject("TensorFlow", Foreign.TENSORFLOW, ["benchmarks.crashes.tensorflow"]),
    Subject("torch RPC", Foreign.TORCH_RPC, ["benchmarks.crashes.torch_rpc"]),
    Subject("Ray, an actor that restarts", Foreign.RAY, ["benchmarks.crashes.ray"]),
]


def main(
    peers: Annotated[list[Foreign], typer.Option(help="Whom to kill besides.")] = [],  # noqa: B006
) -> None:
    """Let clients add to a variable, kill its server, start it again, and look.

    Servers keep what they keep by themselves: no checkpoint was saved.
    """
    subjects = [*OURS, *(each for each in _PEERS if each.peer in peers)]
    rows = [[each.name, *_cells(found_by(each))] for each in subjects]
    columns = ["", f"updates there, of {UPDATES} acknowledged", "the client's next calls"]
    print(Table(columns, rows).markdown())


def found_by(subject: Subject) -> Finding:
    """Return what a client finds, or why there is none."""
    if subject.peer is not None and (why := missing(subject.peer)):
        return Finding(None, why)
    command = [str(python_of(subject.peer)), "-m", *subject.arguments]
    _FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_SECONDS)
    told = [line for line in done.stdout.splitlines() if line.startswith('{"there"')]
    return Finding(**json.loads(told[-1])) if told else Finding(None, "the program ended")


def _cells(finding: Finding) -> Sequence[str]:
    return ["none" if finding.there is None else f"{finding.there:g}", finding.words]


if __name__ == "__main__":
    typer.run(main)
