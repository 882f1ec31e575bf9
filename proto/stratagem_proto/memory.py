"""The memory of this process."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Parameters of glibc's mallopt. Other C libraries have no such function.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

_KEPT_BYTES = 1 << 30
_LARGEST_KEPT_BUFFER = 32 << 20


def keep_freed_memory() -> None:
    """Let the allocator of this process keep up to 1 GiB of freed memory, in buffers up to 32 MiB.

    Each step takes and frees buffers of the same sizes. If they were returned to the system, it
    would clear each page on the next use, which takes many times as long as writing to kept memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BUFFER)
    # The arenas of further threads return memory in spite of the threshold.
    mallopt(_ARENA_MAX, 1)


@contextmanager
def loading() -> Iterator[None]:
    """Exempt from garbage collection what this process has by the end of the block: its modules.

    They live as long as the process, and torch has some 300,000 objects. While the collector looks
    through them, no request is served; it took 0.4 of the 3.8 s in which torch is loaded, and 1 s
    when the process ended.
    """
    gc.disable()
    try:
        yield
    finally:
        # What is forked later goes on to share this memory, in which no marks are left.
        gc.freeze()
        gc.enable()


# The files with the limit of a control group, of version 2 and of version 1.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def half_of_memory(limits: Sequence[Path] = _LIMITS) -> int:
    """Return half of the memory of the machine, or of the container if that has less, in bytes.

    Args:
        limits: Files that may contain the limit of the container. Missing files and those without
            a number are ignored.
    """
    return _memory(limits) // 2


def most_of_memory(limits: Sequence[Path] = _LIMITS) -> int:
    """Return four fifths of the memory; see `half_of_memory`."""
    return _memory(limits) * 4 // 5


def _memory(limits: Sequence[Path]) -> int:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    texts = [file.read_text().strip() for file in limits if file.exists()]
    return min([machine, *(int(text) for text in texts if text.isdigit())])
