"""Files that programs without Stratagem read: one of all tensors, or shards and a list of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stratagem_proto.division import PartRows
from stratagem_proto.errors import DataLossError, InvalidArgumentError, NotFoundError
from stratagem_proto.wire.tensors import nbytes_of
from stratagem_storage.checkpoint.entries import FileEntry, TensorEntry, row_count, row_nbytes
from stratagem_storage.checkpoint.index import Index, require_sound
from stratagem_storage.checkpoint.parts import Content, read_plain, write_part
from stratagem_storage.open_folders import is_plain_name
from stratagem_storage.stores import store_of
from stratagem_storage.stores.local import LocalFolder, replace_file
from stratagem_storage.stores.places import Place
from stratagem_storage.stores.store import Folder

SHARD_LIST = "model.safetensors.index.json"
"""The list of shards: the name and the form are those that Hugging Face's libraries know."""

_MOST_LIST_BYTES = 100_000_000
_RUN_BYTES = 8 << 20


@dataclass(frozen=True)
class PlainTensor:
    """A tensor to write, of which some rows at a time are in memory.

    Attributes:
        content: What it is.
        read: Returns its rows from one number up to another; all of it if it has no dimensions.
    """

    content: Content
    read: Callable[[int, int], torch.Tensor]

    def runs(self) -> Iterator[torch.Tensor]:
        """Yield its rows in their order, some at a time."""
        tensor = self.content.tensor
        at_once, count = max(1, _RUN_BYTES // max(1, row_nbytes(tensor))), row_count(tensor)
        for start in range(0, count, at_once):
            yield self.read(start, min(start + at_once, count))

    def part(self, number: int, rows: PartRows) -> PlainTensor:
        """Return some of its rows as a tensor of its own, which says which rows they are."""
        spec = type(self.content.spec)()
        spec.CopyFrom(self.content.spec)
        spec.partition.CopyFrom(rows.partition(tuple(spec.tensor.shape)))
        spec.tensor.shape[0] = rows.count
        spec.name = f"{spec.name}/part_{number}"
        first, read = rows.first, self.read
        content = replace(self.content, spec=spec)
        return PlainTensor(content, lambda start, stop: read(first + start, first + stop))


def write_plain(place: Place, tensors: Sequence[PlainTensor]) -> None:
    """Write tensors to one safetensors file, which appears as a whole in place of an earlier one.

    Raises:
        NotFoundError: There is no folder for it.
        InvalidArgumentError: `place` is a folder, or safetensors has no name for a dtype.
    """
    store_of(place).place_of_file(place)  # only to see that there can be one
    store_of(place).replace_file(place, lambda path: _write(path, tensors))


def _write(path: Path, tensors: Sequence[PlainTensor]) -> None:
    values = (run for one in tensors for run in one.runs())
    contents = [one.content for one in tensors]
    write_part(LocalFolder.at(path.parent), path.name, contents, values, has_index=False)


def write_shards(place: Place, tensors: Sequence[PlainTensor], most_bytes: int) -> None:
    """Write tensors to files of at most so many bytes of values, in a folder with a list of them.

    A larger tensor is divided: its rows are tensors `<name>/part_0`, `<name>/part_1` and so on. The
    folder appears as a whole; one that was written so before is replaced.

    Raises:
        NotFoundError: There is nothing that could contain the folder.
        InvalidArgumentError: `place` is a URL, a file, or a folder with something else in it.
    """
    if not isinstance(place, Path):
        raise InvalidArgumentError(
            f"{str(place)!r} is a URL, and shards are written to a folder; write them there and "
            "copy it, or leave shard_bytes out: an object of a store may be as large as need be"
        )
    if not place.parent.is_dir():
        raise NotFoundError(f"there is no folder {str(place.parent)!r} for shards; make it first")
    if place.exists() and not _is_replaceable(place):
        raise InvalidArgumentError(
            f"{str(place)!r} is there, and is no folder of shards; give another path, or delete it"
        )
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        shards, where, total = _planned(tensors, most_bytes), dict[str, str](), 0
        for number, shard in enumerate(shards, 1):
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
            _write(partial / name, shard)
            where |= {one.content.spec.name: name for one in shard}
            total += sum(nbytes_of(one.content.tensor) for one in shard)
        listed = {"metadata": {"total_size": total}, "weight_map": where}
        replace_file(partial / SHARD_LIST, json.dumps(listed, indent=2).encode())
        if place.exists():
            shutil.rmtree(place)
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_replaceable(place: Path) -> bool:
    if not place.is_dir():
        return False
    names = {path.name for path in place.iterdir()}
    others = [one for one in names if not (one.startswith("model-") or one == SHARD_LIST)]
    return not names or (SHARD_LIST in names and not others)


def _planned(tensors: Iterable[PlainTensor], most_bytes: int) -> list[list[PlainTensor]]:
    shards, left = list[list[PlainTensor]](), 0
    for one in tensors:
        tensor = one.content.tensor
        for part in _parts(one, max(1, most_bytes // max(1, row_nbytes(tensor)))):
            nbytes = nbytes_of(part.content.tensor)
            if nbytes > left or not shards:
                shards.append([])
                left = most_bytes
            shards[-1].append(part)
            left -= nbytes
    return shards


def _parts(one: PlainTensor, rows: int) -> Iterator[PlainTensor]:
    count = row_count(one.content.tensor)
    if count <= rows:
        yield one
        return
    for number, first in enumerate(range(0, count, rows)):
        yield one.part(number, PartRows(first, min(rows, count - first)))


def read_shards(folder: Folder) -> Index:
    """Return what the shards of a folder have, without reading the values.

    Raises:
        DataLossError: The list, or a shard, is damaged or missing.
    """
    where = str(folder.path / SHARD_LIST)
    try:
        listed: Any = json.loads(folder.read(SHARD_LIST, _MOST_LIST_BYTES))
        names = {str(name): str(file) for name, file in listed["weight_map"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataLossError(f"{where!r} is not a list of shards, or is damaged: {error}") from error
    files, tensors = dict[str, FileEntry](), dict[str, TensorEntry]()
    for file in dict.fromkeys(names.values()):
        if not is_plain_name(file):
            raise DataLossError(f"{where!r} names {file!r}, which is no file of its folder")
        try:
            files[file], entries = read_plain(folder, file)
        except FileNotFoundError as error:
            raise DataLossError(
                f"{where!r} names {file!r}, which is not there; copy all files of the folder"
            ) from error
        tensors |= {entry.name: entry for entry in entries if names.get(entry.name) == file}
    if tensors.keys() != names.keys():
        lacking = ", ".join(map(repr, sorted(names.keys() - tensors.keys())))
        raise DataLossError(f"{where!r} names {lacking}, which its shards do not have")
    require_sound(files, tensors.values(), where)
    return Index(files, tensors)
