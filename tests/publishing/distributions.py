"""Copies of the clone, and the sdist and the wheel that are built of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "proto/stratagem_proto",
    "rpc/stratagem_rpc",
    "storage/stratagem_storage",
    "psserver/stratagem_psserver",
    "reader/stratagem_reader",
    "client/stratagem",
    "worker/stratagem_worker",
    "deploy/stratagem_deploy",
)


class Distributions(NamedTuple):
    """The two files of a release."""

    sdist: Path
    wheel: Path


def tracked() -> list[str]:
    """The files of the clone that belong to it, as paths from its root."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return sorted(each for each in found.stdout.split("\0") if each and (ROOT / each).is_file())


def copy_to(folder: Path, files: Iterable[str]) -> Path:
    """Copies files of the clone; what they are dated is the time of the copy."""
    for file in files:
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, target)
    return folder


def built(source: Path, out: Path, environment: Mapping[str, str] | None = None) -> Distributions:
    """Builds the sdist of a folder, and the wheel of that sdist, as `make dist` does."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    ended = subprocess.run(
        build,
        cwd=out.parent,
        env=os.environ | dict(environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert not ended.returncode, ended.stdout
    return distributions_in(out)


def distributions_in(folder: Path) -> Distributions:
    """The one sdist and the one wheel of a folder."""
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Distributions(sdist, wheel)


def files_of_sdist(sdist: Path) -> set[str]:
    """The paths in an sdist, without the folder that all are in."""
    with tarfile.open(sdist) as archive:
        return {each.name.partition("/")[2] for each in archive.getmembers()}


def files_of_wheel(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())
