"""Memory that two processes of one host share."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from itertools import accumulate

import torch

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.tensors import decode_dtype, nbytes_of
from stratagem_proto.v1.tensor_pb2 import TensorSpec

if sys.platform == "linux":
    import fcntl

    # A file that shrinks kills who reads it where it was, by SIGBUS.
    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

_LEAST_BYTES = 1 << 20

# What processors read at once, and more than any element.
_ALIGNMENT = 64


class Segment:
    """A mapping of an anonymous file, which nothing names and no limit of tmpfs holds.

    It is unmapped when nothing of it is used any more.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._bytes = memoryview(memory)

    @property
    def nbytes(self) -> int:
        return len(self._bytes)

    def view(self, start: int, nbytes: int) -> memoryview:
        """A run of its bytes.

        Raises:
            MalformedStreamError: The run is not within the segment, or elements of
                tensors would not be aligned.
        """
        if start % _ALIGNMENT:
            raise MalformedStreamError(
                f"byte {start} of a segment was named; tensors begin at multiples of "
                f"{_ALIGNMENT}"
            )
        if start + nbytes > self.nbytes:
            raise MalformedStreamError(
                f"bytes {start} to {start + nbytes} of a segment were named; it has "
                f"{self.nbytes}"
            )
        return self._bytes[start : start + nbytes]

    def tensor(self, spec: TensorSpec, start: int) -> torch.Tensor:
        """The tensor whose elements are there; not of 0 bytes.

        Raises:
            MalformedStreamError: As `view`.
        """
        run, dtype = self.view(start, nbytes_of(spec)), decode_dtype(spec.dtype)
        return torch.frombuffer(run, dtype=dtype).view(tuple(spec.shape))


def starts(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where to put tensors of these sizes in a segment, and how much of it they take.

    Args:
        sizes: In bytes.
    """
    padded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    *places, end = accumulate(padded, initial=0)
    return places, end


def grown(nbytes: int) -> int:
    """The size of a segment that so many bytes, and somewhat more, fit into."""
    least = max(nbytes, _LEAST_BYTES)
    step = 1 << (least.bit_length() - 4)
    return -(-least // step) * step


def create(nbytes: int) -> tuple[Segment, int]:
    """A new segment and its descriptor, for the other process; close that.

    Raises:
        OSError: The system has no such memory, or not so much.
    """
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no sealed anonymous files")
    fd = os.memfd_create("stratagem", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Memory that is taken only when it is written to kills the process if there
        # is none then.
        os.posix_fallocate(fd, 0, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
        return Segment(mmap.mmap(fd, nbytes)), fd
    except BaseException:
        os.close(fd)
        raise


def size_of(fd: int) -> int:
    """The size of another process's segment, which does not change any more.

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
    """Maps another process's segment of a size that was looked at by `size_of`.

    Raises:
        OSError: The system has not so much memory, or the segment is read-only.
    """
    # Its maker may have left holes.
    os.posix_fallocate(fd, 0, nbytes)
    return Segment(mmap.mmap(fd, nbytes))
