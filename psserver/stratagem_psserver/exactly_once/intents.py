"""Descriptions of what requests change.

When a scheduled function runs again, its requests are compared to the earlier ones by these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any

from stratagem_proto.v1 import checkpoint_pb2, closed_step_pb2, consistency_pb2, draws_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.variable_requests_pb2 import (
    AssignHeader,
    CreateVariablesHeader,
    DeleteVariablesRequest,
)
from stratagem_psserver.log.changes import Mutation

# The most variables that a message names.
_NAMED = 3

# Longer intents are not cached: the names have not been checked, so a client could send any length.
_CACHED_CHARACTERS = 1_000


@dataclass(frozen=True)
class Intent:
    """What a mutation does to which variables, without the values.

    Attributes:
        summary: A description for messages, for instance "Assign of 'counter'".
        digest: A hash of the method and of all names.
    """

    summary: str
    digest: bytes


def intent_of(request: Mutation) -> Intent:
    """Return what a mutation does."""
    kind = type(request)
    # Sorted, since the order of a set of names differs between processes.
    names = tuple(sorted(_NAMES[kind](request)))
    is_short = len(names) <= _NAMED and sum(map(len, names)) <= _CACHED_CHARACTERS
    return (_cached_intent if is_short else _intent)(kind, names)


def _intent(kind: type, names: tuple[str, ...]) -> Intent:
    method = kind.__name__.removesuffix("Header").removesuffix("Request")
    digest = blake2b("\0".join([method, *names]).encode(), digest_size=16).digest()
    return Intent(_summary(method, names), digest)


# Scheduled functions repeat the same few intents.
_cached_intent = lru_cache(maxsize=256)(_intent)


def _summary(method: str, names: tuple[str, ...]) -> str:
    if not names:
        return method
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{method} of {', '.join(map(repr, names[:_NAMED]))}{more}"


def _written(header: pb.UpdateHeader) -> Iterable[str]:
    return chain(
        (each.variable for each in header.gradients),
        (each.variable for each in header.bindings if each.variable),
    )


_NAMES: Mapping[type, Callable[[Any], Iterable[str]]] = {
    CreateVariablesHeader: lambda header: (one.name for one in header.variables),
    DeleteVariablesRequest: lambda request: request.names,
    AssignHeader: lambda header: [one.variable for one in header.assignments],
    pb.UpdateHeader: _written,
    pb.CommitContributionRequest: lambda request: [request.step.group],
    closed_step_pb2.FinishStepRequest: lambda request: [request.group],
    consistency_pb2.SetConsistencyRequest: lambda request: [request.group],
    checkpoint_pb2.RestoreVariablesRequest: lambda request: [],
    draws_pb2.OpenPassRequest: lambda request: [request.ledger],
    draws_pb2.DrawBatchRequest: lambda request: [request.ledger],
}
"""By class of request: returns the names of what it changes."""
