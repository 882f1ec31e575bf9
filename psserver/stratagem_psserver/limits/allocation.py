"""Memory that the machine does not have, told from other errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from stratagem_proto.errors import ResourceExhaustedError

# What torch raises as a RuntimeError: its allocator, or C++ code beside it, found none.
_SIGNS = ("can't allocate memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it says that memory could not be taken; torch has no class for it."""
    text = str(error)
    return isinstance(error, MemoryError) or any(sign in text for sign in _SIGNS)


@contextmanager
def allocating(advice: str) -> Iterator[None]:
    """Say by name that the machine is out of memory.

    Args:
        advice: What to do about it.

    Raises:
        ResourceExhaustedError: The body could not take memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, ResourceExhaustedError) or not is_out_of_memory(error):
            raise
        raise ResourceExhaustedError(
            f"the machine of the server is out of memory; {advice}"
        ) from error


def require_memory(sizes: Sequence[int]) -> None:
    """Check that the machine has memory, which is left to what follows.

    Args:
        sizes: Bytes of what is to be taken, all at a time.

    Raises:
        RuntimeError: There is none; see `is_out_of_memory`.
    """
    _ = [torch.empty(size, dtype=torch.uint8) for size in sizes]
