"""Sums of known integers: each addition has a digit of its own, so that a sum tells them all."""

from __future__ import annotations

from collections.abc import Collection

import torch

# An addition that is applied twice makes a 2 of its digit, and does not reach the next one.
_BASE = 4
MOST = 26  # digits that a double holds exactly


def amount(digit: int) -> int:
    """Return what an addition adds."""
    return int(_BASE**digit)


def vector(size: int, place: int, digit: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Return what an addition adds to a vector in which every adder has a place."""
    added = torch.zeros(size, dtype=dtype)
    added[place] = amount(digit)
    return added


def times(total: int, digit: int) -> int:
    """Return how often a total contains an addition."""
    return total // amount(digit) % _BASE


def digits_of(total: int) -> list[int]:
    """Return the additions that a total contains."""
    return [digit for digit in range(total.bit_length() // 2 + 1) if times(total, digit)]


def faults_of(total: int, sent: Collection[int], answered: Collection[int]) -> list[str]:
    """Return what is wrong with a total.

    Args:
        total: The total.
        sent: The additions that may be in it.
        answered: Those that have to be in it.
    """
    counts = {digit: times(total, digit) for digit in range(MOST)}
    return [
        *(f"addition {digit} is applied {n} times" for digit, n in counts.items() if n > 1),
        *(f"addition {one} is lost" for one in sorted(answered) if not counts.get(one)),
        *(
            f"addition {digit} was never sent"
            for digit, n in counts.items()
            if n and digit not in sent
        ),
    ]
