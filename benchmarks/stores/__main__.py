"""`python -m benchmarks.stores`: kills clusters that save to an S3 server."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import fsspec
import typer
from tqdm import tqdm

from benchmarks.stores.kills import kills
from benchmarks.stores.server import s3_server


def main(
    count: Annotated[int, typer.Option("--kills", min=1, help="How often to kill.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
) -> None:
    """Kill a cluster as it saves to an S3 server, and read what is there after each kill.

    Needs `pip install 'stratagem[s3]' 'moto[server]'`.

    Exit code: 0 if the latest checkpoint was whole after each kill, and none was lost that the
    program knew to be saved; else 1.
    """
    began = time.monotonic()
    with s3_server() as bucket, TemporaryDirectory() as folder:
        attack = kills(f"{bucket}/run", count, seed, Path(folder))
        found = list(tqdm(attack, total=count, unit="kill"))
        objects = fsspec.filesystem("s3").find(f"{bucket}/run")
    faults = [fault for kill in found for fault in kill.faults]
    ahead = sum(kill.found > kill.acknowledged for kill in found)
    typer.echo(
        f"{count} kills in {time.monotonic() - began:.0f} s, {found[-1].found} checkpoints, "
        f"{ahead} of which the program did not hear of; {len(objects)} objects are left; "
        f"{len(faults)} faults"
    )
    for fault in faults:
        typer.echo(fault, err=True)
    raise typer.Exit(bool(faults))


if __name__ == "__main__":
    typer.run(main)
