"""What to read of a server, and how a request says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch

from stratagem_proto.v1.parameter_server_pb2 import (
    FollowingRead,
    ReadRequest,
    Selection,
    UpdateHeader,
)
from stratagem_proto.wire.placed import SegmentLayout, kinds_of, layout_of
from stratagem_proto.wire.tensors import as_bytes, encode_dtype


class Reading(NamedTuple):
    """What to read of one variable.

    Attributes:
        variable: Its name.
        into: Receives the value; of the variable's dtype and of the shape of what is read. It keeps
            its memory, and counts as written for autograd.
        newer_than: Leave `into` as it is if the version is still this one.
        rows: Indices of the rows to read, int64; None for the whole variable.
        narrowed_to: What elements are rounded to on their way; None for not at all.
    """

    variable: str
    into: torch.Tensor
    newer_than: int | None = None
    rows: torch.Tensor | None = None
    narrowed_to: torch.dtype | None = None


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
    """Return the part of a `ReadRequest` that says what to read."""
    if any([reading.rows is not None for reading in readings]):
        return _asked_by_rows(readings)
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


def _asked_by_rows(readings: Sequence[Reading]) -> bytes:
    parts = list[bytes | memoryview]()
    for reading in readings:
        if reading.rows is None:
            parts.append(asked([reading]))
            continue
        indices = as_bytes(reading.rows)
        before, behind = _around_indices(*_wholes([reading]), indices.nbytes)
        parts += before, indices, behind
    return b"".join(parts)


# Requests for the same numbers of rows come again.
@lru_cache(maxsize=256)
def _around_indices(whole: _Whole, nbytes: int) -> tuple[bytes, bytes]:
    """Return what is before and behind `nbytes` of indices in an encoded request."""
    (selection,) = _selections([whole])
    selection.rows.indices = bytes(nbytes)
    request = ReadRequest(selections=[selection]).SerializeToString()
    behind = _behind_indices(selection)
    return request[: len(request) - len(behind) - nbytes], behind


def _behind_indices(selection: Selection) -> bytes:
    """Return the fields behind the indices: fields are in the order of their numbers."""
    if not selection.HasField("narrowed_to"):
        return b""
    return Selection(narrowed_to=selection.narrowed_to).SerializeToString()


NOTHING_FOLLOWS = following(())
