"""The keys of a table, some at a time."""

from __future__ import annotations

import torch

MOST_KEYS = 1 << 19
"""A page of so many has the bytes of a large chunk."""


def page_of(
    keys: torch.Tensor, after: int | None, limit: int
) -> tuple[torch.Tensor, bool]:
    """The smallest of some keys.

    Going on after the last one lists each key once that is there all the time, whatever
    becomes of the places where keys are stored meanwhile.

    Args:
        keys: int64 vector of distinct keys, in any order.
        after: Only larger ones; None for all.
        limit: Most keys to return; 0 for `MOST_KEYS`, which is also the most.

    Returns:
        The keys, ascending, and whether there are more.
    """
    larger = keys if after is None else keys[keys > after]
    count = min(len(larger), limit or MOST_KEYS, MOST_KEYS)
    # A page of a large table is a small part of it, and need not wait for all the rest
    # to be sorted.
    smallest = larger.topk(count, largest=False).values
    return smallest, count < len(larger)
