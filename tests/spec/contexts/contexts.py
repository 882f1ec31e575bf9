"""The states of a thread, as tests of this folder tell them apart."""

from __future__ import annotations

import stratagem


def state() -> tuple[bool, bool, bool]:
    """Has a strategy, in cross-replica context, has a replica context."""
    return (
        stratagem.has_strategy(),
        stratagem.in_cross_replica_context(),
        stratagem.get_replica_context() is not None,
    )


DEFAULT, CROSS, REPLICA = (False, False, True), (True, True, False), (True, False, True)
