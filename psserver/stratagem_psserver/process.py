"""How a server process uses the machine."""

from __future__ import annotations

import ctypes
import os

# Parameters of glibc's mallopt. Other C libraries have no such function.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

_KEPT_BYTES = 1 << 30
_LARGEST_KEPT_BUFFER = 32 << 20


def tune() -> None:
    """Prepares this process for serving; to be called before torch is imported.

    What the environment says already is left as it is.
    """
    # Threads of a kernel that is done would go on spinning for its next one, on
    # cores that the transfer needs: 7 ms for each push of 10 MB on two cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Large tensors get huge pages, of which there are few to clear.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Lets the allocator keep up to 1 GiB of what is freed, in buffers up to 32 MiB.

    A server takes and drops buffers of the same sizes with every step. Given back to
    the system, each page is cleared again when it is next touched: 10 MB of frames
    cost 5.6 ms so, and 0.4 ms from memory that was kept.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BUFFER)
    # A buffer is often freed by another thread than the one that made it.
    mallopt(_ARENA_MAX, 1)
