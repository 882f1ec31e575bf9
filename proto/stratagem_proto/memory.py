"""The memory of this process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

# Parameters of glibc's mallopt. Other C libraries have no such function.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

_KEPT_BYTES = 1 << 30
_LARGEST_KEPT_BUFFER = 32 << 20


def keep_freed_memory() -> None:
    """Let the allocator keep up to 1 GiB of what is freed, in buffers up to 32 MiB.

    Each step takes and drops buffers of the same sizes. Where they are given back to the system, it
    clears each page when it is next touched, which takes many times as long as to write frames to
    memory that was kept. It is a setting of the whole process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BUFFER)
    # A thread's own arena gives memory back in spite of the threshold.
    mallopt(_ARENA_MAX, 1)


# Where control groups tell it, of the second version and of the first.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def half_of_memory(limits: Sequence[Path] = _LIMITS) -> int:
    """Return half of the machine's memory in bytes, or of its container's.

    Args:
        limits: Files of which each may have a limit of the container; others, and those without a
            number, are passed over.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    texts = [file.read_text().strip() for file in limits if file.exists()]
    return min([machine, *(int(text) for text in texts if text.isdigit())]) // 2
