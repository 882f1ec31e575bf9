"""Decoders of what worker servers say of functions that have ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from google.protobuf.message import DecodeError

from stratagem import ClosureInputError, IndexedSlices
from stratagem._core.distributed_values import Mirrored, PerReplica
from stratagem._shipping.outcome_forms import PLAIN
from stratagem_proto.v1 import worker_pb2 as pb
from tests.fuzzing.target import Target


class Point(NamedTuple):
    """A class that the reader has."""

    x: int
    y: int


_VALUES: tuple[object, ...] = (
    None,
    [True, 1, 1 << 70, 1.5, 2j, "a", b"b", "long " * 300],
    {"a": torch.ones(2, 3), 3: (torch.bfloat16, torch.device("cpu"), torch.Size([2]))},
    [*range(40)],
    {1, 2},
    OrderedDict(a=np.ones(2), b=np.float32(1), c=np.array(["x"])),
    torch.eye(2).to_sparse(),
    IndexedSlices(torch.ones(1, 2), torch.tensor([0])),
    (PerReplica([1, 2]), Mirrored([1, 1])),
    Point(1, 2),
    torch.ones(1, 2).max(dim=1),
    torch.nn.BatchNorm1d(1).state_dict(),
)


def _values(data: bytes) -> None:
    """Read a value whose outline has as many bytes as the first two say, or all there are."""
    size, content = int.from_bytes(data[:2], "little"), data[2:]
    prefix = min(size, len(content)).to_bytes(4, "little")
    PLAIN.load(prefix + content, "a worker")


def _value_seeds() -> Iterator[bytes]:
    for value in _VALUES:
        payload = PLAIN.dump(value)
        yield payload[:2] + payload[4:]


def _failures(data: bytes) -> None:
    try:
        failure = pb.Failure.FromString(data)
    except DecodeError:
        return
    assert isinstance(PLAIN.exception_of(failure, "a worker"), Exception)


def _failure_seeds() -> Iterator[bytes]:
    input_error = ClosureInputError("no input")
    input_error.original_exception = FileNotFoundError(2, "no file", "here")
    for error in (input_error, KeyError("a"), UnicodeDecodeError("utf-8", b"a", 0, 1, "no")):
        failure = pb.Failure(kind=pb.FAILURE_KIND_FUNCTION, class_name="E", message="m")
        PLAIN.add_exception(error, failure)
        yield failure.SerializeToString()


TARGETS: Mapping[str, Target] = {
    "results": Target(_values, _value_seeds),
    "failures": Target(_failures, _failure_seeds),
}
