"""The memory that this process may take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

# Where control groups tell it, of the second version and of the first.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def half_of_memory(limits: Sequence[Path] = _LIMITS) -> int:
    """Half of the machine's memory in bytes, or of its container's.

    Args:
        limits: Files of which each may have a limit of the container; others, and
            those without a number, are passed over.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    texts = [file.read_text().strip() for file in limits if file.exists()]
    return min([machine, *(int(text) for text in texts if text.isdigit())]) // 2
