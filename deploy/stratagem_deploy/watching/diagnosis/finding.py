"""Something that is wrong with a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        what: What it is, with the tasks that it concerns.
        remedy: What to do.
        stalls: Whether somebody waits because of it.
        culprits: The tasks that are to blame, for instance "worker:3".
    """

    what: str
    remedy: str
    stalls: bool = False
    culprits: Sequence[str] = ()

    def facts(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return asdict(self) | {"culprits": list(self.culprits)}
