"""Memory that two processes of one host share."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import torch

from stratagem_proto.errors import MalformedStreamError

if sys.platform == "linux":
    import fcntl

    # A file that shrinks kills who reads it where it was, by SIGBUS.
    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

_LEAST_BYTES = 1 << 20

# What processors read at once, and more than any element.
_ALIGNMENT = 64

# What one socket's calls have in memory by turns: gradients, values, what is evaluated.
_MOST_KEPT = 16

# There may be more sets of fewer tensors: of rows there is another number with each step. Making
# views takes longer than finding those that were kept.
_MOST_VIEWS = 1024

MOST_KEPT_KINDS = 1024
"""Tensors of one request of which it is remembered where they are: they take 0.3 KB each, and 1.4
KB where a segment keeps views of them."""

Kind: TypeAlias = tuple[torch.dtype, torch.Size]
"""What a tensor is besides its elements: dtype and shape."""


class Segment:
    """A mapping of an anonymous file, which nothing names and no limit of tmpfs holds.

    It is unmapped when nothing of it is used any more.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._bytes = memoryview(memory)
        # Each step wants views of the same tensors, and to make them takes longer than to find them
        # here.
        self._kept: dict[tuple[Kind, ...], list[torch.Tensor]] = {}
        self._count = 0

    @property
    def nbytes(self) -> int:
        return len(self._bytes)

    def view(self, start: int, nbytes: int) -> memoryview:
        """Return a run of its bytes.

        Raises:
            MalformedStreamError: The run is not within the segment, or elements of tensors would
                not be aligned.
        """
        if start % _ALIGNMENT:
            raise MalformedStreamError(
                f"byte {start} of a segment was named; tensors begin at multiples of {_ALIGNMENT}"
            )
        if start + nbytes > self.nbytes:
            raise MalformedStreamError(
                f"bytes {start} to {start + nbytes} of a segment were named; it has {self.nbytes}"
            )
        return self._bytes[start : start + nbytes]

    def tensors(self, kinds: tuple[Kind, ...]) -> list[torch.Tensor]:
        """Return tensors of these kinds whose elements are where `starts` puts them.

        Raises:
            MalformedStreamError: The segment is too small.
        """
        if len(kinds) > MOST_KEPT_KINDS:
            return self._views(kinds)
        if (kept := self._kept.get(kinds)) is None:
            kept = self._views(kinds)
            self._keep(kinds, kept)
        return kept

    def _keep(self, kinds: tuple[Kind, ...], views: list[torch.Tensor]) -> None:
        # What has no tensors takes memory, too.
        self._count += 1 + len(views)
        if len(self._kept) >= _MOST_KEPT and self._count > _MOST_VIEWS:
            self._kept.clear()
            self._count = 1 + len(views)
        self._kept[kinds] = views

    def _views(self, kinds: Sequence[Kind]) -> list[torch.Tensor]:
        sizes = [dtype.itemsize * shape.numel() for dtype, shape in kinds]
        places, _ = starts(sizes)
        # Others than those of inference can be written anywhere.
        with torch.inference_mode(False):
            return [
                torch.frombuffer(self.view(start, size), dtype=dtype).view(shape)
                if size
                else torch.empty(shape, dtype=dtype)
                for (dtype, shape), start, size in zip(kinds, places, sizes, strict=True)
            ]


def starts(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where tensors of these sizes go in a segment, and their room in all.

    Args:
        sizes: In bytes.
    """
    *places, end = accumulate(map(_padded, sizes), initial=0)
    return places, end


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def grown(nbytes: int) -> int:
    """Return the size of a segment that so many bytes, and somewhat more, fit into."""
    least = max(nbytes, _LEAST_BYTES)
    step = 1 << (least.bit_length() - 4)
    return -(-least // step) * step


def create(nbytes: int) -> tuple[Segment, int]:
    """Return a new segment and its descriptor, for the other process; close that.

    Raises:
        OSError: The system has no such memory, or not so much.
    """
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no sealed anonymous files")
    fd = os.memfd_create("stratagem", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Memory that is taken only when it is written to kills the process if there is none then.
        os.posix_fallocate(fd, 0, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
        return Segment(mmap.mmap(fd, nbytes)), fd
    except BaseException:
        os.close(fd)
        raise


def size_of(fd: int) -> int:
    """Return the size of another process's segment, which does not change any more.

    Raises:
        MalformedStreamError: It could still change, or there is nothing in it.
    """
    if sys.platform != "linux":
        raise MalformedStreamError(f"segments are not shared on {sys.platform}")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALS != _SEALS:
        raise MalformedStreamError(
            "a segment is no file in memory that is sealed against shrinking and "
            "growing; make it so before it is sent"
        )
    size = os.fstat(fd).st_size
    if not size:
        raise MalformedStreamError("a segment is empty; send one with memory")
    return size


def attach(fd: int, nbytes: int) -> Segment:
    """Map another process's segment of a size that was looked at by `size_of`.

    Raises:
        OSError: The system has not so much memory, or the segment is read-only.
    """
    # Its maker may have left holes.
    os.posix_fallocate(fd, 0, nbytes)
    return Segment(mmap.mmap(fd, nbytes))
