"""Names in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 10


def listed(names: Sequence[str]) -> str:
    """The names one after the other, or the first of them and how many follow."""
    rest = len(names) - _MOST
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(names[:_MOST]) + more
