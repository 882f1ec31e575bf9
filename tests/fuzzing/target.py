"""What is fuzzed: a function that takes bytes, and the bytes to begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stratagem_proto.errors import InternalError, StratagemError

MOST_BYTES = 1 << 20
"""Targets look no further where a decoder would rightly take more memory than that."""


@dataclass(frozen=True)
class Target:
    """A decoder.

    Attributes:
        decode: Decodes bytes. It may refuse them by a `StratagemError`; all else is a fault.
        begin_with: Returns valid inputs, of which others are made.
    """

    decode: Callable[[bytes], object]
    begin_with: Callable[[], Iterable[bytes]]

    def __call__(self, data: bytes) -> None:
        """Decode bytes; raise what is a fault."""
        try:
            self.decode(data)
        except InternalError:
            raise
        except StratagemError:
            pass
