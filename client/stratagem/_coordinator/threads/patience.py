"""How long a call of the program waits."""

from __future__ import annotations

import math
import time

from stratagem_proto.errors import DeadlineExceededError, InvalidArgumentError


class Patience:
    """The time that one call has.

    Args:
        call: What errors call it.
        seconds: How long it may wait; None for ever.

    Raises:
        InvalidArgumentError: `seconds` is negative, or no number.
    """

    def __init__(self, call: str, seconds: float | None) -> None:
        if seconds is not None and not seconds >= 0:
            raise InvalidArgumentError(
                f"timeout of {call} is {seconds}; give seconds, 0 to wait for nothing, "
                "or None to wait for as long as it takes"
            )
        self._call = call
        self._seconds = math.inf if seconds is None else seconds
        self._end = time.monotonic() + self._seconds

    @property
    def left(self) -> float | None:
        """Seconds that are left; None for any number."""
        left = self._end - time.monotonic()
        return None if left == math.inf else max(left, 0.0)

    def exceeded(self, missing: str) -> DeadlineExceededError:
        """Return the error of a call that has waited for too long.

        Args:
            missing: What it waited for.
        """
        return DeadlineExceededError(
            f"{self._call} waited for {self._seconds:g} s: {missing}"
        )
