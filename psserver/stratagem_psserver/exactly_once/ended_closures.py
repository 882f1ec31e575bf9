"""Which functions of a coordinator have ended.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

# The largest number that there is.
_ALL = 2**64 - 1


@dataclass(frozen=True)
class EndedClosures:
    """Numbers of functions: all up to one, but for some.

    Functions end about in the order of their numbers, so those are few.

    Attributes:
        through: The highest that may have ended.
        unended: Those up to it that have not.
    """

    through: int = 0
    unended: frozenset[int] = frozenset()

    def __contains__(self, number: int) -> bool:
        return number <= self.through and number not in self.unended

    @classmethod
    def all(cls) -> EndedClosures:
        """All that there may ever be."""
        return cls(_ALL)

    def united(self, other: EndedClosures) -> EndedClosures:
        """What has ended as of one of both: what came late may be what is older."""
        earlier, later = sorted((self, other), key=lambda each: each.through)
        unended = frozenset(one for one in later.unended if one not in earlier)
        return EndedClosures(later.through, unended)
