"""How long a task may take to move, and how fast."""

from __future__ import annotations

import math
from typing import NamedTuple

from stratagem_proto.errors import InvalidArgumentError


class Effort(NamedTuple):
    """What may be spent on the move of a task.

    Attributes:
        timeout: The longest time, in seconds.
        bytes_per_second: The most bytes of values to be sent in a second; 0 for as many as
            possible.
    """

    timeout: float
    bytes_per_second: int


def effort_of(timeout: float, bytes_per_second: float | None) -> Effort:
    """Return what a program has said.

    Raises:
        InvalidArgumentError: Nothing could move at that rate.
    """
    if bytes_per_second is None:
        return Effort(timeout, 0)
    if not 1 <= bytes_per_second < math.inf:
        raise InvalidArgumentError(
            f"no task moves at {bytes_per_second} bytes per second; give a number of at least 1, "
            "such as 20e6, or None for no limit"
        )
    return Effort(timeout, int(bytes_per_second))
