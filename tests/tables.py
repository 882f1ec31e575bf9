"""Tables of data that tests read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file by name."""
    with path.open("rb") as file:
        return tomllib.load(file)
