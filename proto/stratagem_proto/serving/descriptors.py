"""How many connections a server may have, so that files are left for what it has to do."""

from __future__ import annotations

import resource

# For checkpoints, logs, sockets between threads, and what libraries open.
_OTHERS = 256

_MOST_FILES = 65_536

# Each takes 16 KiB of memory. Strangers are to get 64 MiB at most, with a thousand calls that they
# begin.
MOST_CONNECTIONS = 2_048


def raise_limit() -> None:
    """Let this process open as many files as the system allows it to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Return how many connections to one port leave files for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _MOST_FILES:
        soft = _MOST_FILES
    return min(max(soft - _OTHERS, soft // 2), MOST_CONNECTIONS)
