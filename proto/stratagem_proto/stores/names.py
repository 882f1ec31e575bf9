"""The names in a folder of checkpoints."""

from __future__ import annotations

import re

INDEX = "index.json"
LATEST = "latest"

BEGUN = "begun"
"""In a store, the object by which a new checkpoint begins."""

BASES = "bases"
"""In a checkpoint that is read beside others, the names of these, one a line."""

_NUMBERED = re.compile(r"\.?checkpoint-(\d+)(\.partial)?")
_NUMBERED_OBJECTS = re.compile(r"checkpoint-(\d+)(-[0-9a-f]+)?")


def number_of(name: str) -> int:
    """Return the number of a checkpoint by the name of its folder; 0 for other names."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else 0


def number_of_objects(name: str) -> int:
    """Return the number of a checkpoint in a store; 0 for other names."""
    match = _NUMBERED_OBJECTS.fullmatch(name)
    return int(match[1]) if match else 0


def is_checkpoint(name: str) -> bool:
    """Return whether a name can be that of a checkpoint in a folder or in a store."""
    return not name.startswith(".") and (number_of_objects(name) > 0)
