"""Segments of memory that two processes of one host share."""

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

    # Reading a part of a file that was cut off kills the process by SIGBUS.
    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

_LEAST_BYTES = 1 << 20

# The size of a line of a processor's cache, which is larger than any element.
_ALIGNMENT = 64

# The sets of tensors whose views are cached: a socket's calls place gradients, values and inputs of
# evaluations in turn.
_MOST_KEPT = 16

# More sets are cached while they have fewer tensors together, since the number of rows differs from
# step to step. Making views takes longer than finding cached ones.
_MOST_VIEWS = 1024

MOST_KEPT_KINDS = 1024
"""Layouts and views of more tensors are not cached, which take about 1.7 KB per tensor."""

Kind: TypeAlias = tuple[torch.dtype, torch.Size]
"""The dtype and the shape of a tensor."""


class Segment:
    """A mapping of an anonymous file, which has no name and is not subject to limits of tmpfs.

    It is unmapped when no tensor uses it any more.
    """

    def __init__(self, memory: mmap.mmap | memoryview) -> None:
        self._memory = memory
        self._bytes = memoryview(memory)
        # Cached views, since each step uses the same ones and making them takes longer.
        self._kept: dict[tuple[Kind, ...], list[torch.Tensor]] = {}
        self._count = 0

    @property
    def nbytes(self) -> int:
        return len(self._bytes)

    def copy(self, nbytes: int) -> Segment:
        """Return a segment of this process alone with the first bytes of this one."""
        memory = torch.empty(nbytes, dtype=torch.uint8).numpy().data
        memory[:] = self._bytes[:nbytes]
        return Segment(memory)

    def view(self, start: int, nbytes: int) -> memoryview:
        """Return consecutive bytes of the segment.

        Raises:
            MalformedStreamError: They are not within the segment, or not aligned.
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
        """Return views of tensors of these kinds, at the places that `starts` gives.

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
        # An empty set takes memory, too.
        self._count += 1 + len(views)
        if len(self._kept) >= _MOST_KEPT and self._count > _MOST_VIEWS:
            self._kept.clear()
            self._count = 1 + len(views)
        self._kept[kinds] = views

    def _views(self, kinds: Sequence[Kind]) -> list[torch.Tensor]:
        counts = [shape.numel() for _, shape in kinds]
        sizes = [dtype.itemsize * count for (dtype, _), count in zip(kinds, counts, strict=True)]
        places, end = starts(sizes)
        if end > self.nbytes:
            for start, size in zip(places, sizes, strict=True):
                self.view(start, size)
        # Tensors made in inference mode could not be written outside of it.
        with torch.inference_mode(False):
            return [
                torch.frombuffer(self._bytes, dtype=dtype, count=count, offset=start).view(shape)
                if count
                else torch.empty(shape, dtype=dtype)
                for (dtype, shape), start, count in zip(kinds, places, counts, strict=True)
            ]


def starts(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the places of tensors in a segment, and the bytes that all take together.

    Args:
        sizes: The sizes of the tensors in bytes.
    """
    *places, end = accumulate(map(_padded, sizes), initial=0)
    return places, end


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def rounded_size(nbytes: int) -> int:
    """Return the size of a new segment for so many bytes, rounded up by at most an eighth."""
    least = max(nbytes, _LEAST_BYTES)
    step = 1 << (least.bit_length() - 4)
    return -(-least // step) * step


def create(nbytes: int) -> tuple[Segment, int]:
    """Return a new segment, and its descriptor for the other process, which the caller closes.

    Raises:
        OSError: The system has no such files, or not enough memory.
    """
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no sealed anonymous files")
    fd = os.memfd_create("stratagem", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Otherwise memory would be taken on the first write, and its lack would kill the process.
        os.posix_fallocate(fd, 0, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
        return Segment(mmap.mmap(fd, nbytes)), fd
    except BaseException:
        os.close(fd)
        raise


def size_of(fd: int) -> int:
    """Return the size of another process's segment, which is sealed so that it cannot change.

    Raises:
        MalformedStreamError: The segment is not sealed, or is empty.
    """
    if sys.platform != "linux":
        raise MalformedStreamError(f"segments are not shared on {sys.platform}")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALS != _SEALS:
        raise MalformedStreamError(
            "a segment is not a file in memory that is sealed against shrinking and "
            "growing; seal it before it is sent"
        )
    size = os.fstat(fd).st_size
    if not size:
        raise MalformedStreamError("a segment is empty; send one with memory")
    return size


def attach(fd: int, nbytes: int) -> Segment:
    """Map another process's segment, whose size `size_of` has returned.

    Raises:
        OSError: The system has not enough memory, or the segment is read-only.
    """
    # The other process may not have allocated all memory of the file.
    os.posix_fallocate(fd, 0, nbytes)
    return Segment(mmap.mmap(fd, nbytes))
