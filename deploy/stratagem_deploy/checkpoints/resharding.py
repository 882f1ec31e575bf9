"""Checkpoints written anew, as a plain file or for another number of servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

import torch

from stratagem_proto.checkpoint.contents import wholes_of
from stratagem_proto.checkpoint.folder import Checkpoint, NewCheckpoint, part_name
from stratagem_proto.checkpoint.index import Index
from stratagem_proto.checkpoint.parts import Content, write_part
from stratagem_proto.checkpoint.tables import WholeTable
from stratagem_proto.checkpoint.whole import Whole
from stratagem_proto.errors import UnimplementedError
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    VARIABLE_KIND_SLOT,
    VARIABLE_KIND_UNSPECIFIED,
    Partition,
    VariableSpec,
)


@dataclass(frozen=True)
class _Item:
    """A tensor to be written, and where it comes from."""

    content: Content
    read: Callable[[], torch.Tensor]


def export(checkpoint: Checkpoint, path: Path) -> int:
    """Writes a checkpoint as one plain safetensors file, one variable at a time.

    Args:
        checkpoint: Where the values are.
        path: The new file.

    Returns:
        How many tensors it has.

    Raises:
        FileExistsError: It exists.
        DataLossError: The checkpoint is damaged.
    """
    wholes = wholes_of(checkpoint.index).values()
    contents = [
        Content(VariableSpec(name=one.name, tensor=one.tensor)) for one in wholes
    ]
    try:
        write_part(path, contents, (one.read(checkpoint) for one in wholes))
    except FileExistsError:
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return len(contents)


def reshard(checkpoint: Checkpoint, root: Path, servers: int, keep: int) -> Path:
    """Writes a checkpoint for another number of servers.

    Variables that were split are split by rows over all servers, as evenly as can be;
    the others go to one server after the other.

    Args:
        checkpoint: Where the values are; any safetensors file will do.
        root: The folder of checkpoints that gets it.
        servers: How many servers there are to be.
        keep: How many checkpoints `root` keeps.

    Returns:
        The new checkpoint.

    Raises:
        DataLossError: The checkpoint is damaged.
    """
    new = NewCheckpoint(root)
    try:
        parts = [
            write_part(
                new.folder / part_name(server),
                [item.content for item in items],
                (item.read() for item in items),
            )
            for server, items in enumerate(_placed(checkpoint, servers))
        ]
        index = Index.of_parts(parts, extra=checkpoint.index.extra)
        return new.commit(index, keep)
    except BaseException:
        new.abandon()
        raise


def _placed(checkpoint: Checkpoint, servers: int) -> list[list[_Item]]:
    """What each server gets."""
    wholes = wholes_of(checkpoint.index)
    _require_no_table(wholes.values())
    slots: Mapping[str, list[Whole]] = defaultdict(list)
    for whole in wholes.values():
        if whole.slot_of:
            slots[whole.slot_of].append(whole)
    placed: list[list[_Item]] = [[] for _ in range(servers)]
    turns = cycle(range(servers))
    for whole in wholes.values():
        if whole.slot_of:
            continue
        if _was_split(whole):
            for server, items in enumerate(placed):
                items += _shard(checkpoint, whole, slots[whole.name], server, servers)
        else:
            placed[next(turns)] += _unsplit(checkpoint, whole, slots[whole.name])
    return placed


def _require_no_table(wholes: Iterable[Whole]) -> None:
    for whole in wholes:
        if isinstance(whole, WholeTable):
            raise UnimplementedError(
                f"{whole.name!r} is a table, whose rows are not divided anew yet; "
                "strategy.restore() takes the checkpoint with any number of servers",
                variable=whole.name,
            )


def _was_split(whole: Whole) -> bool:
    return whole.pieces[0].entry.spec.HasField("partition")


def _unsplit(
    checkpoint: Checkpoint, whole: Whole, slots: Sequence[Whole]
) -> Iterator[_Item]:
    for one in (whole, *slots):
        spec = _spec(one, one.name, one.tensor, whole.name)
        yield _Item(_content(one, spec), partial(one.read, checkpoint))


def _shard(
    checkpoint: Checkpoint,
    whole: Whole,
    slots: Sequence[Whole],
    number: int,
    count: int,
) -> Iterator[_Item]:
    """The rows of one shard, with the state that optimizers have for them."""
    start, stop = _rows(whole.shape[0], number, count)
    name = f"{whole.name}/part_{number}"
    shape = (stop - start, *whole.shape[1:])
    for one in (whole, *slots):
        split = one is whole or one.is_split
        tensor = TensorSpec(dtype=one.tensor.dtype, shape=shape if split else one.shape)
        suffix = one.name.removeprefix(whole.name)
        spec = _spec(one, name + suffix, tensor, name)
        if one is whole:
            offset = (start, *(0 for _ in whole.shape[1:]))
            spec.partition.CopyFrom(Partition(full_shape=whole.shape, offset=offset))
        rows = (start, stop) if split else (0, one.shape[0] if one.shape else 1)
        yield _Item(
            _content(one, spec),
            partial(one.read_rows, checkpoint, *rows),
        )


def _rows(total: int, number: int, count: int) -> tuple[int, int]:
    """First row of a shard, and of the next; the first shards have one row more."""
    least, more = divmod(total, count)
    start = number * least + min(number, more)
    return start, start + least + (number < more)


def _spec(whole: Whole, name: str, tensor: TensorSpec, owner: str) -> VariableSpec:
    """What the variable was, under another name and with other rows."""
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
