"""`python -m tests.fuzzing TARGET`: has a decoder look at bytes that no peer would send.

Inputs that take another way through the code are kept, and are where the next run begins;
`tests.fuzzing.merging` brings them to those in `tests/fuzzing/corpora`. One that is a fault is
written to a file; `--failure` shows the fault again.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import atheris
import typer

from tests.fuzzing.instrumented import instrumented

_FOLDER = Path("runs/fuzzing")
_LONGEST = 4096
_LIMITS = ["-rss_limit_mb=4096", "-malloc_limit_mb=512", "-timeout=20", f"-max_len={_LONGEST}"]


def main(
    target: Annotated[str, typer.Argument(help="What to fuzz; `list` names all there is.")],
    seconds: Annotated[int, typer.Option(min=1, help="When to end.")] = 60,
    failure: Annotated[Path | None, typer.Option(help="An input to decode once.")] = None,
    plant: Annotated[str, typer.Option(help="A fault to plant before.")] = "",
    folder: Annotated[Path, typer.Option(help="Where faults go, and inputs to keep.")] = _FOLDER,
) -> None:
    """Fuzz until the time is over, or an input is a fault: then the exit code is not 0."""
    targets = instrumented("catalogue").TARGETS
    planted = instrumented("planted").PLANTED
    if target not in targets:
        raise SystemExit("\n".join(targets))
    with ExitStack() as stack:
        if plant:
            stack.enter_context(planted[plant][1]())
        if failure is not None:
            targets[target](failure.read_bytes())
            return
        kept = _begun(folder / "kept" / target, targets[target])
        settings = [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/{target}-"]
        atheris.Setup([sys.argv[0], *settings, *_LIMITS, str(kept)], targets[target])
        atheris.Fuzz()


def _begun(folder: Path, target: Any) -> Path:
    """Return a folder that has the valid inputs of a target, and those that were kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.begin_with()):
        (folder / f"seed-{number}").write_bytes(data)
    return folder


if __name__ == "__main__":
    typer.run(main)
