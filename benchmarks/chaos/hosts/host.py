"""One place that can be cut off, and what such places have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Direction(Enum):
    """What is lost of what a host and others send each other."""

    IN = "hears nobody"
    OUT = "is heard by nobody"
    BOTH = "is cut off"


@dataclass(frozen=True)
class Host:
    """Where one process runs.

    Attributes:
        name: What it is called.
        bind: The "host:port" at which its process listens.
        address: The "host:port" at which others reach it.
        door: What comes before the command of its process.
    """

    name: str
    bind: str
    address: str
    door: tuple[str, ...] = ()


class Hosts(Protocol):
    """Hosts that are there until they are closed.

    Attributes:
        environment: What their processes find in their environment.
    """

    environment: Mapping[str, str]

    def add(self, name: str) -> Host:
        """Return one more host."""

    def can_cut(self, name: str) -> bool:
        """Return whether a host can be cut off."""

    def cut(self, name: str, direction: Direction) -> None:
        """Cut a host off."""

    def heal(self, name: str) -> None:
        """Let everything pass again."""

    def close(self) -> None:
        """Remove all of them."""
