"""A value that may be missing."""

from __future__ import annotations

from typing import Any

from stratagem_proto.errors import InvalidArgumentError

_NONE = object()


class Optional:
    """What `get_next_as_optional` returns. Spec: INP-43."""

    def __init__(self, value: Any = _NONE) -> None:
        self._value = value

    def has_value(self) -> bool:
        """Whether there is a value: False at the end of the data."""
        return self._value is not _NONE

    def get_value(self) -> Any:
        """Return the value.

        Raises:
            InvalidArgumentError: There is none.
        """
        if not self.has_value():
            raise InvalidArgumentError(
                "The optional has no value, for the data have ended; ask has_value() "
                "before get_value()"
            )
        return self._value
