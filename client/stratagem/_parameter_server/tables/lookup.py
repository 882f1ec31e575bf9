"""Looking rows up in a table that is not here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional

from stratagem._core.tensors.indexed_slices import require_integers
from stratagem._parameter_server.tables.row_values import RowValues
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.rows import distinct


class RowSource(Protocol):
    """Where rows are pulled from."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def pull(self, rows: torch.Tensor, training: bool) -> torch.Tensor:
        """Return rows of the table, on the CPU.

        Args:
            rows: int64 vector, ascending and without repetitions, on the CPU.
            training: Whether their gradient is wanted.
        """
        ...

    def gradient_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of the parameter by which their gradients go."""
        ...


@dataclass(frozen=True)
class _Pulled:
    """The rows that a lookup needs, each once.

    Attributes:
        rows: Which; int64 vector, ascending.
        values: Their values, on the device of the lookup.
        places: Where in `rows` each element of the input is; of its shape.
    """

    rows: torch.Tensor
    values: torch.Tensor
    places: torch.Tensor

    def place_of(self, row: int | None) -> int | None:
        """Return where in `rows` a row is, None if it is not among them."""
        found = [] if row is None else (self.rows == row).nonzero().flatten().tolist()
        return found[0] if found else None


def embedding(  # noqa: PLR0913 - the signature of torch.nn.functional.embedding
    input: torch.Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = True,
) -> torch.Tensor:
    """Return `torch.nn.functional.embedding(input, weight, ...)` of a table.

    The gradient is sparse whatever `sparse` says.

    Raises:
        RowIndexError: There is no such row.
        InvalidTypeError: `input` is no tensor of integers.
        InvalidArgumentError: `max_norm` is given.
    """
    pulled = _pull(input, weight, max_norm)
    found = functional.embedding(
        # torch's sparse gradients know no scalar inputs.
        pulled.places.flatten(),
        pulled.values,
        pulled.place_of(_padding(weight, padding_idx)),
        scale_grad_by_freq=scale_grad_by_freq,
        sparse=not scale_grad_by_freq,
    )
    return found.unflatten(0, input.shape) if input.dim() else found.squeeze(0)


def embedding_bag(  # noqa: PLR0913 - the signature of torch.nn.functional
    input: torch.Tensor,
    weight: Any,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = True,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """Return `torch.nn.functional.embedding_bag(input, weight, ...)` of a table.

    Raises:
        RowIndexError: There is no such row.
        InvalidTypeError: `input` is no tensor of integers.
        InvalidArgumentError: `max_norm` is given.
    """
    pulled = _pull(input, weight, max_norm)
    return functional.embedding_bag(
        pulled.places,
        pulled.values,
        None if offsets is None else offsets.to(torch.int64),
        scale_grad_by_freq=scale_grad_by_freq,
        mode=mode,
        # torch has no sparse gradients of these.
        sparse=mode != "max" and not scale_grad_by_freq,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=pulled.place_of(_padding(weight, padding_idx)),
    )


def _pull(input: torch.Tensor, weight: Any, max_norm: float | None) -> _Pulled:
    source = _source(weight)
    if max_norm is not None:
        raise InvalidArgumentError(
            f"max_norm would have to write to {source.name!r} while rows are looked "
            "up; leave it out, and clip what the lookup returns"
        )
    require_integers(input, source.name)
    unique, places = distinct(input)
    rows = unique.to("cpu", torch.int64)
    training = weight.requires_grad and torch.is_grad_enabled()
    values = source.pull(rows, training).to(input.device)
    if training:
        values = RowValues.apply(weight, values, source.gradient_rows(rows))  # type: ignore[no-untyped-call] # of torch
    return _Pulled(rows, values, places)


def _source(weight: Any) -> RowSource:
    source: RowSource | None = weight.source
    if source is None:
        raise InvalidArgumentError(
            f"a table of shape {tuple(weight.shape)} has no rows before its scope "
            "closes; look them up afterwards"
        )
    return source


def _padding(weight: torch.Tensor, row: int | None) -> int | None:
    return row if row is None or row >= 0 else row + weight.shape[0]
