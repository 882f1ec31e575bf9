"""The public `ShardedVariable`: several variables that are the rows of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import index as as_index
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from stratagem._core.assignment import Assignable, Write
from stratagem._core.contexts import DEFAULT
from stratagem._core.names import UniqueNames
from stratagem._core.tensors import (
    IndexedSlices,
    Operators,
    as_array,
    require_integers,
    row_numbers,
)
from stratagem._core.variable_creation import operand
from stratagem._core.variables import Variable
from stratagem._parameter_server.variables.shards import Layout, Partitioning, merge, shard_name
from stratagem._parameter_server.variables.variable import Shard
from stratagem_proto.division import PartRows
from stratagem_proto.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    RowIndexError,
    UnimplementedError,
)
from stratagem_proto.rows import distinct

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyExtended


class ShardedVariable(Assignable, Operators):
    """Several variables, each of which has some rows of one larger variable.

    A `ParameterServerStrategy` with a `variable_partitioner` makes one of each `Variable(...)` that
    it divides. It is usable wherever torch takes a tensor, as the concatenation of its shards.
    Gradients arrive at the shards: an optimizer takes `[shard.value() for shard in v.variables]`.
    Rows are looked up by `torch.nn.functional.embedding(ids, v)`.

    It is no `Variable`: `device`, `trainable` and the like are those of the shards. Iteration gives
    the shards.

    Args:
        variables: The shards in the order of their rows; of one dtype, and of one shape but for
            dimension 0.
        name: Its name.

    Raises:
        InvalidTypeError: `variables` is not a non-empty list or tuple of variables.
        InvalidArgumentError: They differ in dtype or row shape, or have no rows, or one is a shard
            of what a strategy divided.

    Spec: SHV-1 to SHV-16.
    """

    __module__ = "stratagem"

    def __init__(self, variables: Sequence[Variable], name: str = "ShardedVariable") -> None:
        _require_shards(variables)
        self._variables = tuple(variables)
        self._name = name
        self._layout = Layout(tuple(variable.shape[0] for variable in variables))

    @classmethod
    def divided(cls, name: str, shards: Sequence[Variable]) -> ShardedVariable:
        """Return what a strategy has divided into shards, and into nothing else."""
        sharded = cls(shards, name)
        for shard in shards:
            shard._shard_of = name
        return sharded

    @property
    def variables(self) -> list[Variable]:
        """The shards, in the order of their rows."""
        return list(self._variables)

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole."""
        return torch.Size((self._layout.total, *self._variables[0].shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """The type of the elements."""
        return self._variables[0].dtype

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._variables)

    def __len__(self) -> int:
        raise InvalidTypeError(
            f"ShardedVariable {self.name!r} has no len(), which could be that of its "
            "shards or of its rows; ask len(v.variables) or v.shape[0]"
        )

    # Reading.

    def read_value(self) -> torch.Tensor:
        """Return the whole as one tensor, differentiable with respect to the shards.

        Spec: SHV-13, SHV-14.
        """
        return torch.cat(self._values(self._variables))

    def numpy(self) -> npt.NDArray[Any]:
        """Return the whole as an array; bfloat16 becomes float32."""
        return np.array(as_array(self.read_value()))

    def sparse_read(self, indices: Any) -> torch.Tensor:
        """Return rows, in the order in which they are asked for.

        Args:
            indices: Integers, of any shape.

        Returns:
            A tensor of that shape and of the shape of a row. It is differentiable with respect to
            the shards.

        Raises:
            InvalidTypeError: They are no integers.
            InvalidArgumentError: There is no such row.

        Spec: SHV-11, ODD-16.
        """
        wanted = row_numbers(indices, self.name, self.shape[0])
        routed = self._layout.route(wanted.reshape(-1))
        rows = [one.rows for one in routed]
        parts = self._hooks()._rows_of(self._variables, rows)
        return merge(parts, routed).reshape(*wanted.shape, *self.shape[1:])

    def _operand(self) -> torch.Tensor:
        return self.read_value()

    def _with(self, each: Sequence[Any]) -> Iterator[tuple[Variable, Any]]:
        return zip(self._variables, each, strict=True)

    def _values(self, shards: Sequence[Variable]) -> list[torch.Tensor]:
        return self._hooks()._values_of(shards)

    def _hooks(self) -> AnyExtended:
        strategy = self._variables[0].distribute_strategy or DEFAULT.strategy
        return strategy.extended

    def __getitem__(self, index: Any) -> torch.Tensor:
        return index_rows(self.shape, index, self._rows)

    def _rows(self, rows: range) -> torch.Tensor:
        found = dict(self._layout.slices(rows)) or {0: slice(0, 0)}
        values = self._values([self._variables[number] for number in found])
        pieces = zip(values, found.values(), strict=True)
        return torch.cat([value[piece] for value, piece in pieces])

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in LOOKUPS and isinstance(args[1], cls):
            return LOOKUPS[func](*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    # Writing: servers are written one beside the other, and others may see a mixture.

    def batch_scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace rows, as `scatter_update` does."""
        return self.scatter_update(sparse_delta)

    def _target(self, function: str) -> Any:
        raise InvalidArgumentError(
            f"ShardedVariable {self.name!r} cannot be written by torch's {function}; "
            "use assign, assign_add, assign_sub or scatter_*"
        )

    def _written(self, write: Write, value: Any, read_value: bool) -> ShardedVariable:
        whole = operand(self, value)
        values = [rows.select(whole) for rows in self._layout.shards]
        self._hooks()._write_each(write, dict(self._with(values)))
        return self

    def _scatter(self, write: Write, delta: IndexedSlices) -> Any:
        if isinstance(delta, IndexedSlices) and delta.indices.dim() != 1:
            raise InvalidArgumentError(
                f"ShardedVariable {self.name!r} has one row of values for each index of a vector, "
                f"but the indices have the shape {tuple(delta.indices.shape)}; flatten() them",
                variable=self.name,
            )
        return super()._scatter(write, delta)

    def _scattered(self, write: Write, delta: IndexedSlices) -> ShardedVariable:
        if not self._layout.is_div:
            raise UnimplementedError(
                f"scatter_xxx ops are not supported in ShardedVariable {self.name!r}, "
                'which does not conform to "div" sharding; write to its shards'
            )
        routed = self._layout.route(delta.indices)
        shares = [IndexedSlices(part.select(delta.values), part.rows) for part in routed]
        self._hooks()._write_each(write, dict(self._with(shares)))
        return self

    def __repr__(self) -> str:
        return (
            f"<ShardedVariable {self.name!r} shape={tuple(self.shape)} "
            f"dtype={self.dtype}, rows={list(self._layout.sizes)}>"
        )


def _require_shards(variables: Any) -> None:
    if (
        not isinstance(variables, list | tuple)
        or not variables
        or not all(isinstance(variable, Variable) for variable in variables)
    ):
        raise InvalidTypeError(
            "`variables` of a ShardedVariable must be a non-empty list of variables, "
            f"not {variables!r}"
        )
    _require_same("dtype", [variable.dtype for variable in variables])
    if any(variable.shape == () for variable in variables):
        raise InvalidArgumentError(
            "`variables` of a ShardedVariable have rows, but one is a scalar"
        )
    _require_same("shape except for the first axis", [tuple(v.shape[1:]) for v in variables])
    for variable in variables:
        if variable._shard_of is not None:
            raise InvalidArgumentError(
                f"variable {variable.name!r} is a shard of {variable._shard_of!r} "
                "already; use that one's ShardedVariable"
            )


def _require_same(what: str, found: Sequence[object]) -> None:
    if any(one != found[0] for one in found):
        raise InvalidArgumentError(
            f"All elements of `variables` of a ShardedVariable must have the same "
            f"{what}, but these have {', '.join(map(str, found))}"
        )


class ShardedCreation:
    """Creates variables, each whole or as several shards.

    Args:
        partitioning: Says into how many.
        names: The names of the strategy's variables.

    Attributes:
        created: Those that exist. They are kept alive until they are forgotten, since their shards
            keep their names on the servers.
    """

    def __init__(self, partitioning: Partitioning, names: UniqueNames) -> None:
        self._partitioning = partitioning
        self._names = names
        self.created: list[ShardedVariable] = []

    def create(self, create_one: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """Create a variable, or a `ShardedVariable` of several.

        Args:
            create_one: Creates a variable; takes `shard` as well, a `Shard`.
            kwargs: The arguments of `Variable`, in `colocate_vars_with` also `colocate_with`.
        """
        whole = "colocate_with" in kwargs or kwargs.get("per_worker_variable")
        if whole or not self._partitioning.divides:
            return create_one(**kwargs)
        values = self._partitioning.initial_values(
            kwargs["initial_value"], kwargs.get("dtype"), kwargs.get("shape")
        )
        if len(values) == 1:
            return create_one(**{**kwargs, "initial_value": values[0]})
        return self._create_shards(create_one, values, kwargs)

    def _create_shards(
        self, create_one: Callable[..., Any], values: Sequence[torch.Tensor], kwargs: dict[str, Any]
    ) -> ShardedVariable:
        name = self._names.choose(kwargs.get("name") or "Variable")
        rows = Layout(tuple(len(value) for value in values)).shards
        whole = sum(map(len, values)), *values[0].shape[1:]
        shards = []
        for number, value in enumerate(values):
            given = {"name": shard_name(name, number), "initial_value": value}
            own = {"shape": None, "shard": Shard(rows[number], whole)}
            shards.append(create_one(**{**kwargs, **given, **own}))
        sharded = ShardedVariable.divided(name, shards)
        self._names.record(name, sharded)
        self.created.append(sharded)
        return sharded


def index_rows(
    shape: Sequence[int], index: Any, rows: Callable[[range], torch.Tensor]
) -> torch.Tensor:
    """Return `whole[index]` without more rows of the whole tensor than it takes.

    Args:
        shape: Shape of the whole tensor; it has one dimension at least.
        index: As for NumPy: integers, slices with steps of either sign, `...`, `None`, and boolean
            masks.
        rows: Returns some rows, which are given in ascending order.

    Raises:
        RowIndexError: A row is out of bounds, or there are too many indices.
        InvalidTypeError: There are lists or tensors of integers.

    Spec: SHV-7 to SHV-9.
    """
    items = _expanded(index, len(shape))
    place = next(i for i, item in enumerate(items) if item is not None)
    first = items[place]
    if isinstance(first, torch.Tensor):
        return _index(rows(range(shape[0])), items)
    if not isinstance(first, slice):
        row = _row(shape[0], first)
        items[place] = 0
        return _index(rows(range(row, row + 1)), items)
    selected = range(shape[0])[first]
    items[place] = slice(None, None, 1 if selected.step > 0 else -1)
    return _index(rows(selected if selected.step > 0 else selected[::-1]), items)


def _row(size: int, item: int) -> int:
    if not -size <= item < size:
        raise RowIndexError(f"index {item} of dimension 0 is out of bounds: there are {size} rows")
    return item % size


def _expanded(index: Any, dims: int) -> list[Any]:
    """The index with one item for each dimension, and those that add dimensions."""
    items = [_item(one) for one in (index if isinstance(index, tuple) else (index,))]
    free = dims - sum(_taken(item) for item in items)
    ellipses = [i for i, item in enumerate(items) if item is Ellipsis]
    if free < 0 or len(ellipses) > 1:
        raise RowIndexError(f"too many indices for {dims} dimensions: {index!r}")
    at = ellipses[0] if ellipses else len(items)
    return [*items[:at], *[slice(None)] * free, *items[at + 1 :]]


def _item(item: Any) -> Any:
    if isinstance(item, np.ndarray):
        item = torch.from_numpy(item)
    if isinstance(item, torch.Tensor) and item.dtype is torch.bool and item.dim():
        return item
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, bool | list | torch.Tensor) or not hasattr(item, "__index__"):
        raise InvalidTypeError(
            f"a ShardedVariable cannot be indexed by {item!r}; use integers, slices "
            "and boolean masks, or sparse_read() for rows by number"
        )
    return as_index(item)


def _taken(item: Any) -> int:
    """How many dimensions an item stands for."""
    if isinstance(item, torch.Tensor):
        return item.dim()
    return int(item is not None and item is not Ellipsis)


def _index(tensor: torch.Tensor, items: Sequence[Any]) -> torch.Tensor:
    """Index a tensor, also by slices with negative steps, which torch has not."""
    dim = 0
    ascending = []
    for item in items:
        if isinstance(item, slice) and item.step is not None and item.step < 0:
            start, stop, step = item.indices(tensor.shape[dim])
            last = tensor.shape[dim] - 1
            tensor, item = tensor.flip(dim), slice(last - start, last - stop, -step)
        ascending.append(item)
        dim += _taken(item)
    return tensor[tuple(ascending)]


def embedding(
    input: torch.Tensor,
    table: ShardedVariable,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    sparse: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Return `torch.nn.functional.embedding(input, table, ...)`.

    Where gradients are wanted every shard gets one, of `sparse` ones an empty one if it has none of
    the rows.

    Raises:
        InvalidTypeError: `input` is no tensor of integers.
        InvalidArgumentError: There is no such row, or `max_norm` is given.

    Spec: SHV-12.
    """
    _require_no_norm(table, max_norm)
    require_integers(input, table.name)
    if not torch.is_grad_enabled():
        return table.sparse_read(input)
    layout = table._layout
    padding = None if padding_idx is None else padding_idx % layout.total
    routed = layout.route(input.reshape(-1))
    values = table._values(table.variables)
    parts = [
        functional.embedding(
            one.rows.to(value.device),
            value,
            _within(shard, padding),
            sparse=sparse,
            **options,
        )
        for value, shard, one in zip(values, layout.shards, routed, strict=True)
    ]
    return merge(parts, routed).reshape(*input.shape, *table.shape[1:])


def embedding_bag(
    input: torch.Tensor,
    table: ShardedVariable,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    sparse: bool = False,
    padding_idx: int | None = None,
    **options: Any,
) -> torch.Tensor:
    """Return `torch.nn.functional.embedding_bag(input, table, ...)`.

    Raises:
        StratagemError: As for `embedding`.

    Spec: SHV-12.
    """
    _require_no_norm(table, max_norm)
    require_integers(input, table.name)
    rows, places = distinct(input)
    padding = None
    if padding_idx is not None:
        found = (rows == padding_idx % table.shape[0]).nonzero()
        padding = int(found) if found.numel() else None
    values = embedding(rows, table, sparse=sparse)
    return functional.embedding_bag(places, values, offsets, padding_idx=padding, **options)


LOOKUPS: dict[Callable[..., Any], Callable[..., torch.Tensor]] = {
    functional.embedding: embedding,
    functional.embedding_bag: embedding_bag,
}
"""What takes the place of torch's functions, by these."""


def _within(shard: PartRows, row: int | None) -> int | None:
    return None if row is None or row not in shard.numbers else shard.numbers.index(row)


def _require_no_norm(table: ShardedVariable, max_norm: float | None) -> None:
    if max_norm is not None:
        raise InvalidArgumentError(
            f"max_norm would have to write to ShardedVariable {table.name!r} while "
            "looking rows up; leave it out, and clip rows by assigning them"
        )
