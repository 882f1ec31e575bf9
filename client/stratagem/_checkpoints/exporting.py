"""Modules as files that programs without Stratagem read; tables go from servers to the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.random_rows import round_to_nearest, stored_dtype
from stratagem_proto.v1.checkpoint_pb2 import StoredRows
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_storage.checkpoint.entries import KEYS, companion
from stratagem_storage.checkpoint.parts import Content
from stratagem_storage.checkpoint.plain import PlainTensor, write_plain, write_shards
from stratagem_storage.stores.places import place_of

# So many keys come at a time.
_KEYS_AT_ONCE = 1 << 18


@runtime_checkable
class StoredTable(Protocol):
    """A table whose rows are elsewhere."""

    @property
    def has_keys(self) -> bool:
        """Whether its rows have keys, in place of numbers from 0."""
        ...

    @property
    def is_dense(self) -> bool:
        """Whether all rows are stored."""
        ...

    def keys(self, limit: int) -> Iterator[torch.Tensor]:
        """Yield the keys, or the numbers, of the stored rows, at most so many at a time."""
        ...

    def pull(self, rows: torch.Tensor, training: bool) -> torch.Tensor:
        """Return rows; their numbers or keys ascend."""
        ...

    def undivided(self, name: str) -> VariableSpec:
        """Return the description of all of it in one part."""
        ...


def export(
    module: nn.Module, path: str | os.PathLike[str], stored_rows: bool, shard_bytes: int | None
) -> None:
    """Write what `state_dict()` of a module has; see `Strategy.export`."""
    place = place_of(path)
    if shard_bytes is not None and shard_bytes < 1:
        raise InvalidArgumentError(f"shard_bytes is {shard_bytes}; give 1 or more")
    if shard_bytes is not None and stored_rows:
        raise InvalidArgumentError(
            "stored rows and their keys go into one file; leave shard_bytes or stored_rows out"
        )
    tensors = list(_tensors_of(module, stored_rows))
    if shard_bytes is None:
        write_plain(place, tensors)
    else:
        write_shards(place, tensors, shard_bytes)


def _tensors_of(module: nn.Module, stored_rows: bool) -> Iterator[PlainTensor]:
    # A table that is kept as a parameter is not read.
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise InvalidArgumentError(
                f"state_dict() of {type(module).__name__} has {name!r}, a "
                f"{type(value).__name__}, and a file of tensors has no place for it; keep it "
                "yourself, or export the parts of the module without it",
                variable=name,
            )
        table = getattr(value, "source", None)
        if not isinstance(table, StoredTable):
            yield _whole(name, value)
        elif stored_rows and not table.is_dense:
            yield from _stored(name, table)
        elif not table.has_keys:
            yield _all_rows(name, value, table)
        else:
            raise InvalidArgumentError(
                f"{name!r} has keys in place of numbered rows, and so no end; pass "
                f"stored_rows=True: the file has the rows as {name!r} and their keys as "
                f"{name + KEYS!r} then",
                variable=name,
            )


def _whole(name: str, value: torch.Tensor) -> PlainTensor:
    here = value.detach().cpu().contiguous()
    content = Content(VariableSpec(name=name, tensor=spec_of(here)))
    return PlainTensor(content, lambda start, stop: here[start:stop] if here.dim() else here)


def _all_rows(name: str, parameter: torch.Tensor, table: StoredTable) -> PlainTensor:
    nothing = torch.empty((), dtype=parameter.dtype).expand(parameter.shape)
    content = Content(VariableSpec(name=name, tensor=spec_of(nothing)))
    return PlainTensor(content, lambda start, stop: table.pull(torch.arange(start, stop), False))


def _stored(name: str, table: StoredTable) -> Iterator[PlainTensor]:
    pages = list(table.keys(_KEYS_AT_ONCE))
    keys = torch.cat(pages).sort().values if pages else torch.empty(0, dtype=torch.int64)
    spec = table.undivided(name)
    dtype = stored_dtype(spec)

    def read(start: int, stop: int) -> torch.Tensor:
        return round_to_nearest(table.pull(keys[start:stop], False), dtype)

    yield PlainTensor(Content(spec, rows=StoredRows(count=len(keys))), read)
    content = Content(companion(name, KEYS, len(keys)))
    yield PlainTensor(content, lambda start, stop: keys[start:stop])
