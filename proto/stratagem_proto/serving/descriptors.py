"""How many connections a server may have, so that files are left for what it has to do."""

from __future__ import annotations

import resource

# For checkpoints, logs, sockets between threads, and what libraries open.
_OTHERS = 256

# Each takes some memory of the kernel.
_MOST = 65_536


def raise_limit() -> None:
    """Let this process open as many files as the system allows it to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Return how many connections to one port leave files for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _MOST:
        soft = _MOST
    return max(soft - _OTHERS, soft // 2)
