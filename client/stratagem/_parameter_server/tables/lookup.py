"""Looking rows up in a table that is not here."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch.nn import functional

from stratagem._parameter_server.tables.row_values import RowValues
from stratagem_proto.errors import InvalidArgumentError


class FoundRows(Protocol):
    """What a lookup finds."""

    def output(self) -> torch.Tensor | None:
        """Return the values of the ids, (*ids.shape, *row), differentiable; call it once.

        None if they are to be looked up in the rows.
        """
        ...

    @property
    def rows(self) -> torch.Tensor:
        """The distinct rows or keys, int64."""
        ...

    @property
    def values(self) -> torch.Tensor:
        """Their values, on the CPU."""
        ...

    @property
    def places(self) -> torch.Tensor:
        """Where among them each id is; of the shape and on the device of the ids."""
        ...


class RowSource(Protocol):
    """Where rows are pulled from."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def look_up(self, leaf: torch.Tensor, ids: torch.Tensor, training: bool) -> FoundRows:
        """Return what a lookup finds.

        Args:
            leaf: The parameter that stands for the table.
            ids: Integers of any shape.
            training: Whether their gradient is wanted.
        """
        ...

    def gradient_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of the parameter by which their gradients go."""
        ...


class _Pulled(NamedTuple):
    """The rows that a lookup needs, each once, as torch looks up in them.

    Attributes:
        rows: Which; int64 vector.
        values: Their values, on the device of the lookup, differentiable.
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
    found = _look_up(input, weight, max_norm)
    padding = _padding(weight, padding_idx)
    is_plain = padding is None and not scale_grad_by_freq
    if is_plain and (output := found.output()) is not None:
        return output
    pulled = _pulled(found, weight)
    vectors = functional.embedding(
        # torch's sparse gradients know no scalar inputs.
        pulled.places.flatten(),
        pulled.values,
        pulled.place_of(padding),
        scale_grad_by_freq=scale_grad_by_freq,
        sparse=not scale_grad_by_freq,
    )
    return vectors.unflatten(0, input.shape) if input.dim() else vectors.squeeze(0)


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
    pulled = _pulled(_look_up(input, weight, max_norm), weight)
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


def _look_up(ids: torch.Tensor, weight: Any, max_norm: float | None) -> FoundRows:
    source = _source(weight)
    if max_norm is not None:
        raise InvalidArgumentError(
            f"max_norm would have to write to {source.name!r} while rows are looked "
            "up; leave it out, and clip what the lookup returns"
        )
    return source.look_up(weight, ids, _is_training(weight))


def _is_training(weight: torch.Tensor) -> bool:
    return weight.requires_grad and torch.is_grad_enabled()


def _pulled(found: FoundRows, weight: Any) -> _Pulled:
    rows, places = found.rows, found.places
    values = found.values.to(places.device)
    if _is_training(weight):
        values = RowValues.apply(weight, values, _source(weight).gradient_rows(rows))  # type: ignore[no-untyped-call] # of torch
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
