"""Which arguments torch's functions write to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

Places = frozenset[int | str]
"""Positions and keywords of arguments."""

NOTHING: Places = frozenset()
_FIRST: Places = frozenset((0, "input", "self", "tensor"))
_OUT: Places = frozenset(("out",))
_STATISTICS: Places = frozenset((1, 2, "running_mean", "running_var"))
_TABLE: Places = frozenset((1, "weight"))

# What else they write to if the argument in the first place is true.
_SOMETIMES: dict[Callable[..., Any], tuple[int | str, Places]] = {
    F.batch_norm: ("training", _STATISTICS),
    F.instance_norm: ("use_input_stats", _STATISTICS),
    torch.batch_norm: (5, frozenset((3, 4))),
    torch.instance_norm: (5, frozenset((3, 4))),
    F.embedding: ("max_norm", _TABLE),
    F.embedding_bag: ("max_norm", _TABLE),
}


def written(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> Places:
    """Return which arguments a call of one of torch's functions writes to."""
    if is_in_place(function.__name__) or keywords.get("inplace"):
        return _FIRST
    if "out" in keywords:
        return _OUT
    if function in _SOMETIMES:
        condition, places = _SOMETIMES[function]
        given = args[condition] if isinstance(condition, int) else None
        return places if given or keywords.get(str(condition)) else NOTHING
    return NOTHING


def is_in_place(name: str) -> bool:
    """Return whether a function or method of this name writes to what it is given."""
    return name.endswith("_") and not name.endswith("__")
