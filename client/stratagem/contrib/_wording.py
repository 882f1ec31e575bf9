"""Errors about contexts, in the words of towers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratagem_proto.errors import ContextError

_WORDS = {
    "call_for_each_replica()": "call_for_each_tower()",
    "a ReplicaContext": "a TowerContext",
    "Mismatching ReplicaContext": "Mismatching tower context",
    "get_replica_context": "get_tower_context",
    "cross-replica": "cross-tower",
    "The replicas made": "Some towers made",
    "replica": "tower",
}


@contextmanager
def in_tower_words() -> Iterator[None]:
    """Scope whose errors about contexts speak of towers.

    Spec: CTX-30, CTX-31, CTX-35, TWR-3.
    """
    try:
        yield
    except ContextError as error:
        for word, tower_word in _WORDS.items():
            error.message = error.message.replace(word, tower_word)
        raise
