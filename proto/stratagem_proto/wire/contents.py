"""The `ReadContents` message, which describes the values of an answer."""

from __future__ import annotations

from functools import lru_cache

from stratagem_proto.v1.parameter_server_pb2 import ReadContents, ReadValue
from stratagem_proto.wire.placed import SegmentLayout
from stratagem_proto.wire.segment import MOST_KEPT_KINDS
from stratagem_proto.wire.tensors import spec_of_kind


def all_of(layout: SegmentLayout) -> bytes:
    """Return the encoded `ReadContents` of an answer with all selected values, none encoded."""
    is_kept = len(layout.kinds) <= MOST_KEPT_KINDS
    return (_kept_all if is_kept else _all)(layout)


def _all(layout: SegmentLayout) -> bytes:
    values = [ReadValue(tensor=number) for number, _ in enumerate(layout.kinds)]
    tensors = [spec_of_kind(*kind) for kind in layout.kinds]
    return ReadContents(values=values, tensors=tensors).SerializeToString()


_kept_all = lru_cache(maxsize=256)(_all)
