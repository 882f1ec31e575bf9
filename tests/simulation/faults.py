"""The names of all that goes wrong in simulations, so that what never does can be told."""

from __future__ import annotations

FAULTS = frozenset(
    {
        "connection cut",
        "crash",
        "end of a call late",
        "failing disk",
        "lost end",
        "memory overwritten",
        "partition",
        "pause",
        "power loss",
        "reply late",
        "reply lost",
        "request doubled",
        "request late",
        "request lost",
        "restart",
        "slow disk",
        "slow work",
        "torn log",
    }
)
"""What befalls any servers, or clients."""

REPLICA_FAULTS = frozenset(
    {
        "answer of a former primary refused",
        "answer of the arbiter lost",
        "arbiter away",
        "arbiter late",
        "backup left out",
        "call cut",
        "catch-up",
        "fencing",
        "hand-over",
        "move",
        "record late",
        "replica crash",
        "replica partition",
        "replica pause",
        "take-over",
        "task handed over",
        "view lost",
    }
)
"""What befalls replicas and tasks that move, and what these do because of that."""
