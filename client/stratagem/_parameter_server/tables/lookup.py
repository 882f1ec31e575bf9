"""Looking rows up in a table that is not here, as torch does it in one that is."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from stratagem._core.tensors import IndexedSlices
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.rows import summed


class RowValues(torch.autograd.Function):
    """Rows that were pulled, as a function of the table's parameter.

    Their gradient becomes a `torch.sparse_coo` one of the parameter, with one entry for each entry
    of a sparse gradient, in its order: what torch itself makes of a sparse lookup in a table of
    one's own.
    """

    @staticmethod
    def forward(
        ctx: Any, table: torch.Tensor, values: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.shape, ctx.device = table.shape, table.device
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        (rows,) = ctx.saved_tensors
        if gradient.is_sparse:
            places = gradient._indices()[0].to(rows.device)
            rows, gradient = rows[places], gradient._values()
        return as_sparse(rows, gradient.to(ctx.device), ctx.shape), None, None


class WholeValue(torch.autograd.Function):
    """The whole of a table that was pulled, as a function of its parameter."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.device = table.device
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient.to(ctx.device), None


def as_sparse(rows: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the uncoalesced sparse tensor of some rows."""
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, shape, check_invariants=False)


def added_up(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values and the rows of a sparse gradient with each row once, ascending.

    What there is for a row is added in its order, as in a dense gradient; torch's `coalesce` keeps
    to none, and is much slower.
    """
    slices = IndexedSlices.from_sparse(gradient)
    if gradient.is_coalesced():
        return slices.values, slices.indices
    rows, values = summed(slices.indices, slices.values)
    return values, rows


class PulledRows:
    """Keeps rows as they were when they were first looked up.

    So forward and backward, and several lookups, see one value of a row.
    """

    def __init__(self, row_shape: torch.Size, dtype: torch.dtype) -> None:
        self._rows = torch.empty(0, dtype=torch.int64)
        self._values = torch.empty(0, *row_shape, dtype=dtype)
        # Most rows are looked up once, and need not be found again.
        self._is_sorted = True

    @property
    def is_empty(self) -> bool:
        """Whether there are none yet."""
        return not len(self._rows)

    def missing(self, rows: torch.Tensor) -> torch.Tensor:
        """Return those rows that are not here; all without repetitions."""
        if self.is_empty:
            return rows
        return rows[~torch.isin(rows, self._rows, assume_unique=True)]

    def add(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Keep rows that were missing."""
        if self.is_empty:
            self._rows, self._values = rows, values
        else:
            self._rows = torch.cat([self._rows, rows])
            self._values = torch.cat([self._values, values])
        self._is_sorted = False

    def values_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values of rows that are here."""
        if not self._is_sorted:
            self._rows, order = self._rows.sort()
            self._values = self._values.index_select(0, order)
            self._is_sorted = True
        return self._values.index_select(0, torch.searchsorted(self._rows, rows))


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
