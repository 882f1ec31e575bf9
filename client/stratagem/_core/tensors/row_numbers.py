"""The numbers of rows that programs ask for."""

from __future__ import annotations

from typing import Any

import torch

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

_INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}


def require_integers(rows: Any, owner: str) -> None:
    """Check that rows or keys are whole numbers; others would be rounded.

    Args:
        rows: What was asked for.
        owner: The name of the variable or table.

    Raises:
        InvalidTypeError: They are no tensor of integers.
    """
    kind = rows.dtype if isinstance(rows, torch.Tensor) else type(rows).__name__
    if kind not in _INTEGERS:
        raise InvalidTypeError(
            f"{owner!r} is looked up by a tensor of integers, not by {kind}; pass "
            "torch.as_tensor(..., dtype=torch.int64)"
        )


def row_numbers(given: Any, owner: str, total: int) -> torch.Tensor:
    """Return rows that a program asks for as a tensor.

    Args:
        given: Integers, of any shape.
        owner: The name of the variable.
        total: How many rows it has.

    Raises:
        InvalidTypeError: They are no integers.
        InvalidArgumentError: There is no such row.
    """
    rows = torch.as_tensor(given)
    if not rows.numel():
        return rows.to(torch.int64)
    require_integers(rows, owner)
    first, last = int(rows.min()), int(rows.max())
    if not 0 <= first <= last < total:
        raise InvalidArgumentError(
            f"rows {first} to {last} of {owner!r} are asked for, but it has the rows 0 "
            f"to {total - 1}"
        )
    return rows.to(torch.int64)
