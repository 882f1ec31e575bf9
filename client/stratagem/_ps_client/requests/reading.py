"""What to read of a server, and how a request says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch

from stratagem_proto.v1.parameter_server_pb2 import (
    FollowingRead,
    JointRows,
    ReadRequest,
    Selection,
    UpdateHeader,
)
from stratagem_proto.wire.placed import SegmentLayout, kinds_of, layout_of
from stratagem_proto.wire.tensors import as_bytes, encode_dtype


class Reading(NamedTuple):
    """The read of one variable.

    Attributes:
        variable: Its name.
        into: Receives the value; of the variable's shape and dtype. It keeps its memory, and counts
            as written for autograd.
        newer_than: Leave `into` as it is if the version is still this one.
        narrowed_to: What elements are rounded to on their way; None for not at all.
    """

    variable: str
    into: torch.Tensor
    newer_than: int | None = None
    narrowed_to: torch.dtype | None = None


class RowsReading(NamedTuple):
    """The read of rows of several variables, which come as one tensor.

    Attributes:
        variables: Their names.
        rows: The rows of each, int64 vectors.
        into: Receives all rows, those of the first variable first; of the variables' dtype.
        narrowed_to: As of `Reading`.
    """

    variables: Sequence[str]
    rows: Sequence[torch.Tensor]
    into: torch.Tensor
    narrowed_to: torch.dtype | None = None

    @property
    def variable(self) -> str:
        """What messages call the variables."""
        return self.variables[0]

    def encoded(self) -> JointRows:
        """Return what asks a server for the rows."""
        rows = self.rows[0] if len(self.rows) == 1 else torch.cat([*self.rows])
        return JointRows(
            variables=self.variables,
            sizes=list(map(len, self.rows)),
            indices=bytes(as_bytes(rows)),
            narrowed_to=None if self.narrowed_to is None else encode_dtype(self.narrowed_to),
        )


AnyReading: TypeAlias = Reading | RowsReading


class AskedRows(NamedTuple):
    """Rows of variables on several servers.

    Attributes:
        readings: How to read them, by server.
        found: The rows of each variable, once they were read.
    """

    readings: Mapping[int, Sequence[RowsReading]]
    found: Sequence[torch.Tensor]


class ReadsAfterUpdate(NamedTuple):
    """Whole variables to read after an update.

    Their tensors have the layout, and `encoded` is the part of an `UpdateHeader` that asks for
    them.
    """

    readings: Sequence[Reading]
    layout: SegmentLayout
    encoded: bytes


def following(readings: Sequence[Reading]) -> ReadsAfterUpdate:
    """Return readings of whole variables, to be done after an update."""
    layout = layout_of(kinds_of([reading.into for reading in readings]))
    return ReadsAfterUpdate(readings, layout, _asked_after(_wholes(readings)))


def asked(readings: Sequence[Reading]) -> bytes:
    """Return the part of a `ReadRequest` that says what to read of variables."""
    return _asked(_wholes(readings))


_Whole: TypeAlias = tuple[str, int | None, torch.dtype | None]
_Wholes: TypeAlias = tuple[_Whole, ...]


def _wholes(readings: Sequence[Reading]) -> _Wholes:
    return tuple([(r.variable, r.newer_than, r.narrowed_to) for r in readings])


# The same variables are read with each step.
@lru_cache(maxsize=16)
def _asked(wholes: _Wholes) -> bytes:
    return ReadRequest(selections=_selections(wholes)).SerializeToString()


@lru_cache(maxsize=16)
def _asked_after(wholes: _Wholes) -> bytes:
    then = FollowingRead(selections=_selections(wholes))
    return UpdateHeader(then=then).SerializeToString()


def _selections(wholes: Sequence[_Whole]) -> Iterator[Selection]:
    for variable, newer_than, narrowed_to in wholes:
        number = None if narrowed_to is None else encode_dtype(narrowed_to)
        yield Selection(variable=variable, newer_than=newer_than, narrowed_to=number)


NOTHING_FOLLOWS = following(())
