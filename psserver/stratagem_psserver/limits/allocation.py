"""Recognising and reporting that the machine has no memory left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from stratagem_proto.errors import ResourceExhaustedError

# Texts of the RuntimeErrors of torch when its allocator, or other C++ code, finds no memory.
_SIGNS = ("can't allocate memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is no memory; torch has no class for that."""
    text = str(error)
    return isinstance(error, MemoryError) or any(sign in text for sign in _SIGNS)


@contextmanager
def allocating(advice: str) -> Iterator[None]:
    """Turn errors of the block that say that there is no memory into a typed error.

    Args:
        advice: The remedy, for the message.

    Raises:
        ResourceExhaustedError: There is no memory.
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
    """Check that the machine has memory, by taking and freeing it.

    Args:
        sizes: The sizes of tensors that will exist at the same time, in bytes.

    Raises:
        RuntimeError: There is not enough; see `is_out_of_memory`.
    """
    _ = [torch.empty(size, dtype=torch.uint8) for size in sizes]
