"""Replicas that had no data in a step, as at the end of a dataset."""

from __future__ import annotations

import copy
import warnings
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch

from stratagem._core.contexts.context import current_replica_id
from stratagem._core.contexts.presence import Presence
from stratagem._core.tensors.nests import leaves, map_leaves
from stratagem._core.values.distributed_values import PerReplica


def replicas_without_rows(arguments: Any, wrapped: bool = True) -> tuple[int, ...]:
    """Return the replicas of this process that get nothing but tensors of 0 rows.

    Args:
        arguments: What a replica function is called with.
        wrapped: Whether input is `PerReplica`, so that other leaves do not matter. The only replica
            of a process gets plain tensors.
    """
    found = leaves(arguments)
    parts = [leaf.values for leaf in found if type(leaf) is PerReplica]
    if not wrapped:
        parts = [(leaf,) for leaf in found]
    if not parts:
        return ()
    return tuple(index for index, mine in enumerate(zip(*parts, strict=False)) if _all_empty(mine))


def _all_empty(parts: tuple[Any, ...]) -> bool:
    tensors = [part for part in parts if isinstance(part, torch.Tensor) and part.dim()]
    return bool(tensors) and not any(tensor.shape[0] for tensor in tensors)


# Threads of replicas take over the variables of the thread that runs them.
_WITHOUT_ROWS: ContextVar[tuple[int, ...]] = ContextVar("replicas without rows")


def running_without_rows(replicas: tuple[int, ...]) -> AbstractContextManager[None]:
    """Scope in which the replicas run, some of them without data."""
    return Presence(_WITHOUT_ROWS, replicas)


def has_no_rows() -> bool:
    """Return whether the replica that this thread runs got no data."""
    empty = _WITHOUT_ROWS.get(())
    return bool(empty) and current_replica_id() in empty


def marked(results: Any, replicas: tuple[int, ...]) -> Any:
    """Return `results` with the note that these replicas had no data."""

    def noted(leaf: Any) -> Any:
        if type(leaf) is not PerReplica:
            return leaf
        twin = copy.copy(leaf)
        twin.without_rows = replicas
        return twin

    return map_leaves(noted, results)


def warn_of_replicas_without_rows(value: Any) -> None:
    """Warn if `value`, about to be reduced, is partly of replicas without data."""
    noted = [leaf.without_rows for leaf in leaves(value) if type(leaf) is PerReplica]
    for replicas in {replicas for replicas in noted if replicas}:
        warnings.warn(
            f"reduce(axis=None) takes in what replica {_listed(replicas)} returned "
            "without having had any data; let the replica function keep the rows, and "
            "pass axis=0 to weigh replicas by their rows",
            stacklevel=3,
        )


def _listed(replicas: tuple[int, ...]) -> str:
    return " and ".join(map(str, replicas))
