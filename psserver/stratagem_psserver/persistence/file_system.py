"""The kind of the file system of a folder."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")


def file_system_of(path: Path) -> str:
    """Return the kind of the file system of a folder; "" where the system does not tell."""
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    kinds = dict(_mount(line) for line in lines)
    place = path.resolve()
    return next((kinds[each] for each in (place, *place.parents) if each in kinds), "")


def _mount(line: str) -> tuple[Path, str]:
    before, _, after = line.partition(" - ")
    # Spaces in a path, for instance, are written as "\040".
    point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
    return Path(point), after.split()[0]
