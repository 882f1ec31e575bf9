"""Writing checkpoints anew: for another number of servers, signed, or as a plain file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain, cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from stratagem_proto.division import PartRows
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
)
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_proto.v1.checkpoint_pb2 import StoredRows
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    VARIABLE_KIND_SLOT,
    VARIABLE_KIND_UNSPECIFIED,
    VariableSpec,
)
from stratagem_psserver.restoration import read_table
from stratagem_psserver.variables.snapshots import Snapshot
from stratagem_psserver.variables.store import VariableStore
from stratagem_storage.checkpoint.entries import (
    KEYS,
    TensorFile,
    WriteOptions,
    companion,
    row_nbytes,
    write_file,
)
from stratagem_storage.checkpoint.folder import Checkpoint, NewCheckpoint, part_name
from stratagem_storage.checkpoint.index import Index
from stratagem_storage.checkpoint.parts import Content, write_part
from stratagem_storage.checkpoint.wholes import Whole, WholeTable, undivided, wholes_of
from stratagem_storage.stores import store_of
from stratagem_storage.stores.places import AnyPlace, Place
from stratagem_storage.stores.store import Folder

_Item = tuple[Content, Callable[[], torch.Tensor]]
"""A tensor to write, and what reads it."""

_Group = Callable[[], tuple[Sequence[Content], Iterable[torch.Tensor]]]
"""Looks up what tensors of a part there are, and how to read them one by one."""


def _of_items(items: Iterable[_Item]) -> _Group:
    listed = list(items)
    contents = [content for content, _ in listed]
    return lambda: (contents, (read() for _, read in listed))


def reshard(checkpoint: Checkpoint, root: AnyPlace, servers: int, keep: int) -> Place:
    """Write a checkpoint for another number of servers.

    Variables that were split are split by rows over all servers, as evenly as can be; the others go
    to one server after the other. So are tables, whose rows go by their keys; those of one server
    are in memory while its part is written.

    Args:
        checkpoint: Where the values are; any safetensors file will do.
        root: The folder of checkpoints that gets it.
        servers: How many servers there are to be.
        keep: How many checkpoints `root` keeps.

    Returns:
        The new checkpoint.

    Raises:
        DataLossError: The checkpoint is damaged.
        InvalidArgumentError: A file has the stored rows of a table without what the others are.
    """
    placed, key = _placed(checkpoint, servers), CHECKPOINT_KEY_FILE.from_environment()
    new = NewCheckpoint(root)
    try:
        parts = [
            _write_groups(new.folder, part_name(server), groups, bool(key))
            for server, groups in enumerate(placed)
        ]
        was = checkpoint.index
        index = Index.of_parts(parts, extra=was.extra, workers=was.workers)
        return new.commit(index, keep, key)
    except BaseException:
        new.abandon()
        raise


def _write_groups(
    folder: Folder, name: str, groups: Iterable[_Group], has_digests: bool
) -> TensorFile:
    found = [group() for group in groups]
    contents = [content for some, _ in found for content in some]
    values = chain.from_iterable(each for _, each in found)
    return write_part(folder, name, contents, values, options=WriteOptions(has_digests=has_digests))


def _placed(checkpoint: Checkpoint, servers: int) -> list[list[_Group]]:
    """Return the tensors of each server."""
    wholes = wholes_of(checkpoint.index)
    slots: Mapping[str, list[Whole]] = defaultdict(list)
    for whole in wholes.values():
        if whole.name.endswith(KEYS):
            raise InvalidArgumentError(
                f"the file has {whole.name!r}, the keys of a table's stored rows, but no "
                "description of the table: another program has written it since; import "
                "the file as `stratagem checkpoint export --stored-rows` wrote it",
                variable=whole.name,
            )
        if whole.slot_of:
            slots[whole.slot_of].append(whole)
    placed: list[list[_Group]] = [[] for _ in range(servers)]
    turns = cycle(range(servers))
    for whole in wholes.values():
        if not whole.slot_of:
            shares = list(_shares(checkpoint, whole, slots[whole.name], servers))
            start = next(turns) if len(shares) == 1 else 0
            for server, share in enumerate(shares, start):
                placed[server] += share
    return placed


def _shares(
    checkpoint: Checkpoint, whole: Whole, slots: Sequence[Whole], servers: int
) -> Iterator[list[_Group]]:
    """Yield each server's tensors of a variable; a small variable goes to one server."""
    if isinstance(whole, WholeTable):
        yield from _table(checkpoint, whole, slots, servers)
    elif whole.pieces[0].entry.spec.HasField("partition"):
        for server in range(servers):
            yield [_of_items(_shard(checkpoint, whole, slots, server, servers))]
    else:
        specs = [(one, _spec(one, one.name, one.tensor, whole.name)) for one in (whole, *slots)]
        items = [(_content(one, spec), partial(one.read, checkpoint)) for one, spec in specs]
        yield [_of_items(items)]


def _table(
    checkpoint: Checkpoint, whole: WholeTable, slots: Sequence[Whole], servers: int
) -> Iterator[list[_Group]]:
    """Yield each server's tensors of a table, beginning with the first server that has some."""
    states = [slot for slot in slots if slot.is_split]
    others = [slot for slot in slots if not slot.is_split]
    for spec in _divided(whole, servers):
        items = []
        for slot in others:
            name = spec.name + slot.name.removeprefix(whole.name)
            content = _content(slot, _spec(slot, name, slot.tensor, spec.name))
            items.append((content, partial(slot.read, checkpoint)))
        yield [partial(_stored_part, checkpoint, spec, whole, states), _of_items(items)]


def _shard(
    checkpoint: Checkpoint, whole: Whole, slots: Sequence[Whole], number: int, count: int
) -> Iterator[_Item]:
    """Yield the rows of one shard, with the state that optimizers have for them."""
    was = whole.pieces[0].entry.spec.partition
    mine = PartRows.of_shard(whole.shape[0], number, count, was.HasField("interleaved"))
    name = f"{whole.name}/part_{number}"
    shape = (mine.count, *whole.shape[1:])
    for one in (whole, *slots):
        split = one is whole or one.is_split
        tensor = TensorSpec(
            dtype=one.tensor.dtype, shape=shape[: len(one.shape)] if split else one.shape
        )
        suffix = one.name.removeprefix(whole.name)
        spec = _spec(one, name + suffix, tensor, name)
        if one is whole:
            spec.partition.CopyFrom(mine.partition(whole.shape))
        read = partial(one.read_part, checkpoint, mine) if split else partial(one.read, checkpoint)
        yield _content(one, spec), read


def _spec(whole: Whole, name: str, tensor: TensorSpec, owner: str) -> VariableSpec:
    """Return what the variable was, under another name and with other rows."""
    spec = VariableSpec()
    spec.CopyFrom(whole.pieces[0].entry.spec)
    spec.ClearField("partition")
    spec.name = name
    spec.tensor.CopyFrom(tensor)
    spec.slot_of = owner if whole.slot_of else ""
    if spec.kind == VARIABLE_KIND_UNSPECIFIED:
        spec.kind = VARIABLE_KIND_SLOT if whole.slot_of else VARIABLE_KIND_MODEL
    return spec


def _content(whole: Whole, spec: VariableSpec) -> Content:
    return Content(spec, max(piece.entry.version for piece in whole.pieces))


def _divided(table: WholeTable, servers: int) -> Iterator[VariableSpec]:
    """Yield the descriptions of a table's new parts, in the order of the servers.

    A dynamic table has one on each server, as has one that had several parts. Any other one has a
    single part.
    """
    was = table.parts[0].table.spec
    count = servers if table.is_dynamic or was.HasField("partition") else 1
    for number in range(count):
        spec = VariableSpec()
        spec.CopyFrom(table.spec)
        if count > 1:
            interleaved = was.partition.HasField("interleaved")
            rows = PartRows.of_shard(table.shape[0], number, count, interleaved)
            spec.name = f"{table.name}/part_{number}"
            spec.partition.CopyFrom(rows.partition(table.shape))
            spec.tensor.shape[0] = rows.count
        if table.is_dynamic:
            keys, before = spec.table.dynamic, len(table.parts)
            keys.part, keys.parts = number, count
            # What there was room for on all servers together, there is.
            keys.max_rows = -(-keys.max_rows * before // count)
            keys.max_bytes = -(-keys.max_bytes * before // count)
        yield spec


def _stored_part(
    checkpoint: Checkpoint, spec: VariableSpec, table: WholeTable, slots: Sequence[Whole]
) -> tuple[list[Content], Iterator[torch.Tensor]]:
    """Return the tensors of a new part of a table, which are in memory, and of its rows' slots."""
    store = VariableStore()
    for arena in read_table(checkpoint, spec, table, slots).arenas:
        store.put_table(arena)
    for variable, whole in zip(store.variables(), (table, *slots), strict=True):
        variable.version = max(piece.entry.version for piece in whole.pieces)
    snapshot = Snapshot(store)
    return snapshot.contents, snapshot.taken()


_ALL = 1 << 62


def sign(checkpoint: Checkpoint, root: Place, key: str) -> Place:
    """Write a signed copy of a checkpoint, which becomes the latest one; all others stay.

    A copy, since the bytes that were checked are then those that are signed, and since a crash
    leaves what there was.

    Args:
        checkpoint: The checkpoint, which somebody trusts.
        root: The folder of checkpoints that gets the copy.
        key: The key.

    Returns:
        The copy.

    Raises:
        DataLossError: The checkpoint is damaged.
        FailedPreconditionError: It is incremental.
    """
    if checkpoint.base is not None:
        raise FailedPreconditionError(
            f"{str(checkpoint.folder)!r} has only what differs from "
            f"{str(checkpoint.base.folder)!r}, so that its signature would say nothing of the "
            "rest; write a whole one by `stratagem checkpoint reshard`, and sign that"
        )
    new = NewCheckpoint(root)
    try:
        options = WriteOptions(has_digests=True)
        files = {
            name: write_file(new.folder, name, checkpoint.file(name).checked(), options)
            for name in checkpoint.index.files
        }
        return new.commit(replace(checkpoint.index, files=files), _ALL, key)
    except BaseException:
        new.abandon()
        raise


_PARQUET_BYTES = 64 << 20


def export_parquet(checkpoint: Checkpoint, place: Place) -> int:
    """Write the stored rows of tables as Parquet files, and beside them all that is no table.

    `NAME-00000.parquet` and the following files have a column `key` of int64, and a column `row`,
    lists of the elements of a row; those of bfloat16 become float32. What they are of is in the
    metadata of their schema. `values.safetensors` has the other variables, and is written last.

    Args:
        checkpoint: Where the values are.
        place: The new folder.

    Returns:
        How many files it has.

    Raises:
        FailedPreconditionError: The package pyarrow is not installed.
        FileExistsError: The folder exists, or a file in it.
        UnimplementedError: Parquet has no such elements.
        DataLossError: The checkpoint is damaged.
    """
    arrow = _arrow()
    if isinstance(place, Path):
        place.mkdir()
    written: list[tuple[Folder, str]] = []
    try:
        wholes = wholes_of(checkpoint.index).values()
        for file, table in _arrow_tables(arrow, checkpoint, wholes):
            folder, name = store_of(place / file).place_of_file(place / file)
            sink = arrow.BufferOutputStream()
            arrow.parquet.write_table(table, sink)
            folder.write(name, [memoryview(sink.getvalue())])
            written.append((folder, name))
        rest = [each for each in wholes if not isinstance(each, WholeTable)]
        _write_plain(checkpoint, rest, place / "values.safetensors", stored_rows=False)
    except BaseException:
        for folder, name in written:
            folder.remove(name)
        if isinstance(place, Path):
            place.rmdir()
        raise
    return len(written) + 1


def _arrow() -> Any:
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError as error:
        raise FailedPreconditionError(
            "Parquet needs the package pyarrow; run `pip install 'stratagem[parquet]'`"
        ) from error


def _arrow_tables(
    arrow: Any, checkpoint: Checkpoint, wholes: Iterable[Whole]
) -> Iterator[tuple[str, Any]]:
    """Yield the names of files, and what belongs into each."""
    for table in wholes:
        if isinstance(table, WholeTable):
            for number, (keys, rows) in enumerate(_partitions(checkpoint, table)):
                name = f"{quote(table.name, safe='')}-{number:05}.parquet"
                yield name, _arrow_table(arrow, checkpoint, table, keys, rows)


def _partitions(
    checkpoint: Checkpoint, table: WholeTable
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the keys and the rows of a table, as many as one file has; at least once."""
    at_once = max(1, _PARQUET_BYTES // max(1, row_nbytes(table.parts[0].entry.tensor)))
    for part in table.parts:
        for start in range(0, max(part.count, part is table.parts[0]), at_once):
            yield part.stored(checkpoint, start, min(part.count, start + at_once))


def _arrow_table(
    arrow: Any, checkpoint: Checkpoint, table: WholeTable, keys: torch.Tensor, rows: torch.Tensor
) -> Any:
    elements = rows.float() if rows.dtype in _NOT_IN_NUMPY else rows
    published = checkpoint.index.published
    about = {
        "stratagem.table": table.name,
        "stratagem.version": str(published.version if published else 0),
        "stratagem.dtype": str(rows.dtype).removeprefix("torch."),
        "stratagem.row_shape": json.dumps([*rows.shape[1:]]),
    }
    width = rows.shape[1:].numel()
    try:
        flat = arrow.array(elements.reshape(-1).numpy())
    except NotImplementedError as error:
        raise UnimplementedError(
            f"Parquet has no {rows.dtype}, which {table.name!r} has; export it without --parquet",
            variable=table.name,
        ) from error
    lists = arrow.FixedSizeListArray.from_arrays(flat, width)
    return arrow.table({"key": keys.numpy(), "row": lists}).replace_schema_metadata(about)


_NOT_IN_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)

_PlainTensor = tuple[Content, Callable[[], Iterable[torch.Tensor]]]
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
    return _write_plain(checkpoint, wholes_of(checkpoint.index).values(), place, stored_rows)


def _write_plain(
    checkpoint: Checkpoint, wholes: Iterable[Whole], place: Place, stored_rows: bool
) -> int:
    tensors = [one for each in wholes for one in _plain_tensors(checkpoint, each, stored_rows)]
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


def _plain_tensors(
    checkpoint: Checkpoint, whole: Whole, stored_rows: bool
) -> Iterator[_PlainTensor]:
    if stored_rows and isinstance(whole, WholeTable):
        rows = StoredRows(count=whole.count)
        yield Content(undivided(whole), rows=rows), partial(whole.runs, checkpoint)
        keys = Content(companion(whole.name, KEYS, whole.count))
        yield keys, partial(whole.keys, checkpoint)
    else:
        content = Content(VariableSpec(name=whole.name, tensor=whole.tensor))
        yield content, lambda: iter([whole.read(checkpoint)])
