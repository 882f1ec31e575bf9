"""What can be profiled."""

from __future__ import annotations

from enum import Enum


class Name(str, Enum):
    """What it is that takes time."""

    STEP = "step"
    LOOKUP = "lookup"

    @property
    def file(self) -> str:
        """The file that its profile is kept in."""
        return f"profile-{self.value}.md"
