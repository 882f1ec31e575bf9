"""Print the wheels of an image as requirements for pip, each with its hash.

    python deploy/docker/hashed.py build/wheels "stratagem[tls]" > build/wheels/server.txt

The arguments after the folder with the wheels are those of `pip install`, for the Python that runs
this.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def main() -> None:
    """Print them, sorted by name."""
    folder, *arguments = sys.argv[1:]
    print(*sorted(requirements(chosen(folder, arguments))), sep="\n")


def chosen(folder: str, arguments: Sequence[str]) -> Iterable[Mapping[str, Any]]:
    """Return what pip says of the wheels that it would install; it exits if there are not all."""
    line = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install"]
    line += ["--quiet", "--dry-run", "--ignore-installed", "--report=-", "--no-index"]
    ended = subprocess.run(
        [*line, "--find-links", folder, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if ended.returncode:
        raise SystemExit(ended.returncode)
    found: list[dict[str, Any]] = json.loads(ended.stdout)["install"]
    return found


def requirements(wheels: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a requirement for each wheel."""
    for wheel in wheels:
        of, file = wheel["metadata"], wheel["download_info"]["archive_info"]
        yield f"{of['name']}=={of['version']} --hash=sha256:{file['hashes']['sha256']}"


if __name__ == "__main__":
    main()
