"""Modules whose parameters may be larger than any machine, and what goes with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from stratagem._parameter_server.tables.recording import current_recorder, taking_keys
from stratagem._parameter_server.tables.variable import (
    EVICTION_ORDERS,
    NOMINAL_ROWS,
    DynamicTable,
    KeyLimits,
    prefetch,
)
from stratagem_proto.errors import ContextError, InvalidArgumentError
from stratagem_proto.programs.random_rows import NARROW

# Milliseconds are what servers count; the other is a hundred years.
_LEAST_IDLE, _MOST_IDLE = 0.001, 3.2e9

__all__ = ["DynamicEmbedding", "Embedding", "EmbeddingBag", "clip_grad_norm_", "prefetch"]


class Embedding(nn.Embedding):
    """`torch.nn.Embedding` whose rows are pulled when they are looked up.

    In the scope of a `ParameterServerStrategy` with a cluster the table is on the servers, divided
    among them if it is large, and never in this process. They make initial values from what was
    recorded: those of `torch.nn.Embedding`, or of what `torch.nn.init` did to `weight` in the
    scope. Elsewhere it is torch's own with sparse gradients.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Size of a row.
        padding_idx: Row that stays as it is; it starts as zeros.
        row_dtype: What servers store the rows in: `torch.bfloat16`, `torch.float16`, or None for
            their own dtype. Lookups return float32, and optimizers compute with it; a number that
            is written becomes one of its two neighbours at random, so that its mean is right.
            Elsewhere rows keep their dtype.
        options: The other arguments of `torch.nn.Embedding` by name. `sparse` is always true.

    Raises:
        InvalidArgumentError: `max_norm` is given: a lookup would have to write. Rows cannot be
            stored in `row_dtype`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        row_dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        with _table(options):
            super().__init__(num_embeddings, embedding_dim, padding_idx, **options)
        self.row_dtype: torch.dtype | None = _row_dtype(row_dtype)


class EmbeddingBag(nn.EmbeddingBag):
    """`torch.nn.EmbeddingBag` whose rows are pulled when they are looked up.

    Where the rows are, see `Embedding`.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Size of a row.
        row_dtype: As of `Embedding`.
        options: The other arguments of `torch.nn.EmbeddingBag` by name. `sparse` is always true,
            but for `mode="max"`, of which torch has no sparse gradients.

    Raises:
        InvalidArgumentError: `max_norm` is given: a lookup would have to write. Rows cannot be
            stored in `row_dtype`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        row_dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        with _table(options):
            if options.get("mode") == "max":
                options["sparse"] = False
            super().__init__(num_embeddings, embedding_dim, **options)
        self.row_dtype: torch.dtype | None = _row_dtype(row_dtype)


class DynamicEmbedding(nn.Module):
    """An embedding of arbitrary int64 keys, without a fixed vocabulary.

    A key has its initial value until it is first updated; then the servers store a row for it, or
    without a cluster this process, in the same way. It needs a `ParameterServerStrategy`.

    Args:
        embedding_dim: Size of a row.
        admit_after: Number of updates of a key from which on it has a row; the gradients before are
            dropped. So rare keys take no memory.
        max_idle: Number of writes of the table after which a row that they did not touch is
            evicted; None for never.
        max_bytes: The most bytes that the table may take on all servers together, with optimizer
            state and index; some rows make room for others, see `evict`. None for no limit.
        max_idle_seconds: Time after which a row that nothing has written is evicted, at the latest
            after a quarter more, also if nothing else is written; at least 0.001. None for never.
            The time in which no server has the table does not count.
        evict: Which rows make room for others: "oldest", those touched least recently, or
            "rarest", those written least often, at 4 bytes a row more. Their counts are halved
            whenever as many rows have gone as the table has, so that old favourites leave.
        row_dtype: As of `Embedding`.
        dtype: Type of the elements; by default torch's default.

    Attributes:
        weight: The parameter. `torch.nn.init` in the scope says what keys start with; otherwise it
            is normally distributed as in `torch.nn.Embedding`.

    Raises:
        ContextError: No scope of a `ParameterServerStrategy` is open.
        InvalidArgumentError: A limit is less than it may be, or `evict` is neither of both.
    """

    def __init__(  # noqa: PLR0913 - independent settings, by name
        self,
        embedding_dim: int,
        *,
        admit_after: int = 1,
        max_idle: int | None = None,
        max_bytes: int | None = None,
        max_idle_seconds: float | None = None,
        evict: str = "oldest",
        row_dtype: torch.dtype | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        limits = {"admit_after": admit_after, "max_idle": max_idle}
        _require_eviction(max_idle_seconds, evict)
        _require_positive({"embedding_dim": embedding_dim, "max_bytes": max_bytes})
        _require_positive(limits)
        self.embedding_dim = embedding_dim
        self.row_dtype: torch.dtype | None = _row_dtype(row_dtype)
        self.limits: KeyLimits = KeyLimits(
            admit_after, max_idle, max_bytes, max_idle_seconds, evict
        )
        taking = taking_keys()
        if taking is None:
            raise ContextError(
                "DynamicEmbedding keeps its rows as parameter servers do; build it inside `with "
                "strategy.scope():` of a ParameterServerStrategy, with a cluster or without"
            )
        with taking:
            empty = torch.empty(NOMINAL_ROWS, embedding_dim, dtype=dtype)
        self.weight: nn.Parameter = nn.Parameter(empty)
        nn.init.normal_(self.weight)

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the rows of keys.

        Args:
            keys: Integer tensor of any shape.

        Returns:
            A tensor of that shape and `embedding_dim`.
        """
        return functional.embedding(keys, self.weight, sparse=True)

    def keys(self, page: int = 1 << 16) -> Iterator[torch.Tensor]:
        """Yield the keys that have rows, some at a time.

        So can the rows be had::

            for keys in items.keys():
                export(keys, items(keys))

        A page has keys of one server, ascending, as they are when it is fetched. Keys that have
        rows all the time are in one page each; of those that get one, or lose it, while others
        train, some are. Within `strategy.snapshot()` the pages are of one moment. Keys that wait
        for `admit_after` have no row.

        Args:
            page: The most keys to fetch at a time, 8 bytes each. Servers give at most 524288.

        Yields:
            int64 vectors of distinct keys, none of them empty.

        Raises:
            InvalidArgumentError: `page` is less than 1, or the scope of the table is still open.
        """
        _require_positive({"page": page})
        table = getattr(self.weight, "source", None)
        if not isinstance(table, DynamicTable):
            raise InvalidArgumentError(
                "a DynamicEmbedding has no keys before its scope closes; ask for them afterwards"
            )
        return table.keys(page)

    def extra_repr(self) -> str:
        return f"{self.embedding_dim}"


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Scale gradients so that their norm together is at most `max_norm`.

    As `torch.nn.utils.clip_grad_norm_`, which has no sparse gradients. Of those the rows count,
    each once: repeated ones are added up.

    Args:
        parameters: Parameters, whose `grad` is changed.
        max_norm: The largest norm.
        norm_type: Which norm.

    Returns:
        The norm before, a scalar tensor.
    """
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    values = [_gradient_values(one) for one in parameters if one.grad is not None]
    norm = nn.utils.get_total_norm(values, norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for value in values:
        value.mul_(scale.to(value.device))
    return norm


def _gradient_values(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    if not parameter.grad.is_sparse:
        return parameter.grad.detach()
    parameter.grad = parameter.grad.coalesce()
    return parameter.grad._values()


def _table(options: dict[str, Any]) -> AbstractContextManager[None]:
    """Check the options of a table, and return what its memory is allocated in."""
    if options.get("max_norm") is not None:
        raise InvalidArgumentError(
            "max_norm would have to write to a table while rows are looked up; leave "
            "it out, and clip what the lookup returns"
        )
    options["sparse"] = not options.get("scale_grad_by_freq", False)
    recorder = current_recorder()
    return nullcontext() if recorder is None else recorder.taking_all()


def _row_dtype(given: torch.dtype | None) -> torch.dtype | None:
    if given not in {None, *NARROW}:
        raise InvalidArgumentError(
            f"row_dtype is {given}; rows are stored as torch.bfloat16, torch.float16, or, with "
            "None, as what they are"
        )
    return given


def _require_eviction(max_idle_seconds: float | None, evict: str) -> None:
    if max_idle_seconds is not None and not _LEAST_IDLE <= max_idle_seconds <= _MOST_IDLE:
        raise InvalidArgumentError(
            f"max_idle_seconds is {max_idle_seconds}; it must be from {_LEAST_IDLE} to {_MOST_IDLE}"
        )
    if evict not in EVICTION_ORDERS:
        raise InvalidArgumentError(
            f"evict is {evict!r}; it must be one of {', '.join(map(repr, EVICTION_ORDERS))}"
        )


def _require_positive(limits: Mapping[str, int | None]) -> None:
    for name, value in limits.items():
        if value is not None and value < 1:
            raise InvalidArgumentError(f"{name} is {value}; it must be at least 1")
