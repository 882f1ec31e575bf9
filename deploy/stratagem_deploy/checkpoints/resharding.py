"""Writing checkpoints for another number of servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle

import torch

from stratagem_deploy.checkpoints.tables import divided, stored_part
from stratagem_proto.checkpoint.entries import KEYS, TensorFile, WriteOptions
from stratagem_proto.checkpoint.folder import Checkpoint, NewCheckpoint, part_name
from stratagem_proto.checkpoint.index import Index
from stratagem_proto.checkpoint.parts import Content, write_part
from stratagem_proto.checkpoint.wholes import Whole, WholeTable, wholes_of
from stratagem_proto.division import PartRows
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_proto.stores.places import AnyPlace, Place
from stratagem_proto.stores.store import Folder
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    VARIABLE_KIND_SLOT,
    VARIABLE_KIND_UNSPECIFIED,
    VariableSpec,
)


@dataclass(frozen=True)
class _Item:
    """A tensor to write, and its source."""

    content: Content
    read: Callable[[], torch.Tensor]


_Group = Callable[[], tuple[Sequence[Content], Iterable[torch.Tensor]]]
"""Looks up what tensors of a part there are, and how to read them one by one."""


def _of_items(items: Iterable[_Item]) -> _Group:
    listed = list(items)
    contents = [item.content for item in listed]
    return lambda: (contents, (item.read() for item in listed))


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
            _written(new.folder, part_name(server), groups, bool(key))
            for server, groups in enumerate(placed)
        ]
        was = checkpoint.index
        index = Index.of_parts(parts, extra=was.extra, workers=was.workers)
        return new.commit(index, keep, key)
    except BaseException:
        new.abandon()
        raise


def _written(folder: Folder, name: str, groups: Iterable[_Group], has_digests: bool) -> TensorFile:
    found = [group() for group in groups]
    contents = [content for some, _ in found for content in some]
    values, options = (
        chain.from_iterable(each for _, each in found),
        WriteOptions(has_digests=has_digests),
    )
    return write_part(folder, name, contents, values, options=options)


def _placed(checkpoint: Checkpoint, servers: int) -> list[list[_Group]]:
    """Return the tensors of each server."""
    wholes = wholes_of(checkpoint.index)
    _require_variables(wholes.values())
    slots: Mapping[str, list[Whole]] = defaultdict(list)
    for whole in wholes.values():
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
    elif not _was_split(whole):
        yield [_of_items(_unsplit(checkpoint, whole, slots))]
    else:
        for server in range(servers):
            yield [_of_items(_shard(checkpoint, whole, slots, server, servers))]


def _require_variables(wholes: Iterable[Whole]) -> None:
    for whole in wholes:
        if whole.name.endswith(KEYS):
            raise InvalidArgumentError(
                f"the file has {whole.name!r}, the keys of a table's stored rows, but no "
                "description of the table: another program has written it since; import "
                "the file as `stratagem checkpoint export --stored-rows` wrote it",
                variable=whole.name,
            )


def _table(
    checkpoint: Checkpoint, whole: WholeTable, slots: Sequence[Whole], servers: int
) -> Iterator[list[_Group]]:
    """Yield each server's tensors of a table, beginning with the first server that has some."""
    states = [slot for slot in slots if slot.is_split]
    others = [slot for slot in slots if not slot.is_split]
    for spec in divided(whole, servers):
        items = []
        for slot in others:
            name = spec.name + slot.name.removeprefix(whole.name)
            content = _content(slot, _spec(slot, name, slot.tensor, spec.name))
            items.append(_Item(content, partial(slot.read, checkpoint)))
        yield [partial(stored_part, checkpoint, spec, whole, states), _of_items(items)]


def _was_split(whole: Whole) -> bool:
    return whole.pieces[0].entry.spec.HasField("partition")


def _unsplit(checkpoint: Checkpoint, whole: Whole, slots: Sequence[Whole]) -> Iterator[_Item]:
    for one in (whole, *slots):
        spec = _spec(one, one.name, one.tensor, whole.name)
        yield _Item(_content(one, spec), partial(one.read, checkpoint))


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
        yield _Item(_content(one, spec), read)


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
