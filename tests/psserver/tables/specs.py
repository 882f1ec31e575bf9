"""Descriptions of tables, and what to do with them in tests."""

from __future__ import annotations

from typing import Any

import torch

from stratagem_proto.division import PartRows
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    DynamicKeys,
    Initializer,
    NormalShape,
    TableSpec,
    UniformRange,
    VariableSpec,
)
from stratagem_proto.wire.tensors import encode_dtype
from stratagem_psserver.optimization.optimizers import Optimizers
from stratagem_psserver.tables.table import Table
from stratagem_psserver.variables.creation import check_made, initial_values
from stratagem_psserver.variables.store import Variable, VariableStore

ZEROS = Initializer(constant=0.0)
UNIFORM = Initializer(seed=7, uniform=UniformRange(low=-1.0, high=1.0))
NORMAL = Initializer(seed=7, normal=NormalShape(mean=0.0, std=1.0))


def table_spec(
    name: str,
    shape: tuple[int, ...],
    initializer: Initializer = NORMAL,
    table: TableSpec | None = None,
    dtype: torch.dtype = torch.float32,
    row_dtype: torch.dtype | None = None,
) -> VariableSpec:
    """The description of a table; of a dynamic one if its shape has 0 rows."""
    dynamic = None if shape[0] else DynamicKeys()
    spec = VariableSpec(
        name=name,
        tensor=TensorSpec(dtype=encode_dtype(dtype), shape=shape),
        kind=VARIABLE_KIND_MODEL,
        initializer=initializer,
        table=table or TableSpec(dynamic=dynamic),
    )
    if row_dtype is not None:
        spec.table.row_dtype = encode_dtype(row_dtype)
    return spec


def dynamic(**limits: Any) -> TableSpec:
    return TableSpec(dynamic=DynamicKeys(**limits))


def made(spec: VariableSpec) -> VariableSpec:
    """The same variable with all its rows in memory, from the server's own values."""
    dense = VariableSpec()
    dense.CopyFrom(spec)
    dense.ClearField("table")
    return dense


def parts(spec: VariableSpec, number: int, is_interleaved: bool = False) -> list[VariableSpec]:
    """A variable divided into parts along its first dimension, the larger first."""
    specs = []
    for index in range(number):
        rows = PartRows.of_shard(spec.tensor.shape[0], index, number, is_interleaved)
        part = VariableSpec()
        part.CopyFrom(spec)
        part.name = f"{spec.name}/part_{index}"
        part.tensor.shape[0] = rows.count
        part.partition.CopyFrom(rows.partition(spec.tensor.shape))
        specs.append(part)
    return specs


def hosting(*specs: VariableSpec) -> tuple[VariableStore, Optimizers]:
    """A store that has made these variables."""
    store = VariableStore()
    check_made(specs)
    store.create(specs, initial_values(specs, []))
    return store, Optimizers(store)


def table_of(variable: Variable) -> Table:
    """The rows of a variable that is a table or a slot of one."""
    assert variable.arena is not None
    return variable.arena.table
