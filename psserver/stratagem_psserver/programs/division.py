"""Divisions of integers that end a process: the smallest number, by -1.

The quotient is one more than the largest number, which processors answer by a trap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stratagem_proto.programs.operations import Operation

_DIVIDING = frozenset({"div", "floor_divide", "fmod", "remainder"})


def check_division(
    operation: Operation, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Checks the numbers that are divided, if they are integers.

    Args:
        operation: What is called.
        arguments: Its positional arguments.
        keywords: The others.

    Raises:
        OverflowError: The smallest number of their type is divided by -1.
    """
    if operation.name.split(".")[1].rstrip("_") not in _DIVIDING:
        return
    names = [parameter.name for parameter in operation.parameters]
    given = dict(zip(names, arguments, strict=False)) | dict(keywords)
    dividend, divisor = given["self"], given["other"]
    dtype = torch.result_type(dividend, divisor)
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return
    if not _has(divisor, -1) or not _has(dividend, smallest := torch.iinfo(dtype).min):
        return
    if _is_any(torch.eq(_tensor(dividend), smallest) & torch.eq(_tensor(divisor), -1)):
        raise OverflowError(f"{smallest}, the smallest {dtype}, is divided by -1")


def _has(numbers: Any, number: int) -> bool:
    if not isinstance(numbers, torch.Tensor):
        return bool(numbers == number)
    if numbers.dtype is torch.bool or torch.iinfo(numbers.dtype).min > number:
        return False
    return _is_any(torch.eq(numbers, number))


def _is_any(found: torch.Tensor) -> bool:
    # Tensors without contents are all that a program is tried on.
    return not found.is_meta and bool(found.any())


def _tensor(numbers: Any) -> torch.Tensor:
    return torch.as_tensor(numbers)
