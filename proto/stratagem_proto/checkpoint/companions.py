"""The companion tensors of tables: what is stored beside the rows, such as their keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import encode_dtype

if TYPE_CHECKING:
    from stratagem_proto.checkpoint.entries import TensorEntry

KEYS, TOUCHED, SEEN, SIGHTS = "[keys]", "[touched]", "[seen]", "[sights]"
COUNTS = "[counts]"
"""The endings of the names of a table's companion tensors; see `StoredRows`."""

_COMPANION = re.compile(r"\[(keys|touched|counts|seen|sights)\]\Z")


def companion(table: str, what: str, count: int) -> VariableSpec:
    """Return the description of one of a table's companion tensors.

    These are the keys of its rows and what else a table needs beside its values.
    """
    dtype = torch.int32 if what == COUNTS else torch.int64
    tensor = TensorSpec(dtype=encode_dtype(dtype), shape=[count])
    return VariableSpec(name=table + what, tensor=tensor)


def is_companion(name: str, tensors: Mapping[str, TensorEntry]) -> bool:
    """Return whether a tensor is a companion of a table among these."""
    table = tensors.get(_COMPANION.sub("", name))
    return table is not None and table.rows is not None and table.name != name
