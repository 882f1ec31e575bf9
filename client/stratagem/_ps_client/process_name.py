"""The name of this process among those of a cluster."""

from __future__ import annotations

import os
import secrets
from functools import lru_cache

from stratagem_proto.protocol import SESSION_ID_BYTES


def process_name() -> bytes:
    """Return random bytes that name this process; those of a forked child are others."""
    return _name_of(os.getpid())


@lru_cache(maxsize=1)
def _name_of(process: int) -> bytes:
    return secrets.token_bytes(SESSION_ID_BYTES)
