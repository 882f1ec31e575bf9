"""Exporting checkpoints as plain files, for programs without parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from stratagem_proto.checkpoint.entries import KEYS, companion
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.parts import Content, write_part
from stratagem_proto.checkpoint.wholes import Whole, WholeTable, undivided, wholes_of
from stratagem_proto.stores import store_of
from stratagem_proto.stores.places import Place
from stratagem_proto.v1.checkpoint_pb2 import StoredRows
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec

_Tensor = tuple[Content, Callable[[], Iterable[torch.Tensor]]]
"""A tensor to be written, and what reads it in runs of rows."""


def export(checkpoint: Checkpoint, place: Place, stored_rows: bool = False) -> int:
    """Write a checkpoint as one plain safetensors file, one variable at a time.

    Args:
        checkpoint: Where the values are.
        place: The new file.
        stored_rows: Whether tables are written as the rows that are stored, with a tensor
            `<name>[keys]` of their keys; else with all their rows. How long rows were idle, and
            keys that have no row yet, is left out.

    Returns:
        How many tensors it has.

    Raises:
        FileExistsError: It exists.
        InvalidArgumentError: A table is too large to be written with all its rows, or is dynamic.
        DataLossError: The checkpoint is damaged.
    """
    wholes = wholes_of(checkpoint.index).values()
    tensors = [one for each in wholes for one in _tensors(checkpoint, each, stored_rows)]
    folder, name = store_of(place).place_of_file(place)
    try:
        values = (run for _, read in tensors for run in read())
        contents = [content for content, _ in tensors]
        write_part(folder, name, contents, values, has_index=False)
    except FileExistsError:
        raise
    except BaseException:
        folder.remove(name)
        raise
    return len(tensors)


def _tensors(checkpoint: Checkpoint, whole: Whole, stored_rows: bool) -> Iterator[_Tensor]:
    if stored_rows and isinstance(whole, WholeTable):
        rows = StoredRows(count=whole.count)
        yield Content(undivided(whole), rows=rows), partial(whole.runs, checkpoint)
        keys = Content(companion(whole.name, KEYS, whole.count))
        yield keys, partial(whole.keys, checkpoint)
    else:
        content = _content(whole.name, whole.tensor)
        yield content, lambda: iter([whole.read(checkpoint)])


def _content(name: str, tensor: TensorSpec) -> Content:
    return Content(VariableSpec(name=name, tensor=tensor))
