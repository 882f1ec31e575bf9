"""Files of tensors: the tensors of one server, in the format of safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from stratagem_proto.errors import DataLossError, InvalidArgumentError
from stratagem_proto.v1.checkpoint_pb2 import ChangedRows, SavedPart, StoredRows
from stratagem_proto.v1.publication_pb2 import ReadVersionResponse, VersionLink, VersionPart
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import as_bytes, decode_dtype, encode_dtype, nbytes_of, spec_of
from stratagem_storage.checkpoint.deltas import Delta
from stratagem_storage.checkpoint.entries import (
    BLOCK_BYTES,
    DURABLY,
    Account,
    FileEntry,
    TensorEntry,
    TensorFile,
    WriteOptions,
    some_rows,
    stored_tensor,
)
from stratagem_storage.checkpoint.index import require_sound
from stratagem_storage.stores.places import Place
from stratagem_storage.stores.store import Folder, size_of

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_NAMES = {encode_dtype(dtype): name for dtype, name in DTYPE_NAMES.items()}

NOTES = "stratagem_tables"
"""The metadata of a file that describe the tables, and the parts of variables, in it."""

# What looking for something in a header in vain raises.
_MISREADINGS = (LookupError, ValueError, TypeError, AttributeError, ParseError, RecursionError)

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_MOST_HEADER_BYTES = 100_000_000  # as safetensors


@dataclass(frozen=True)
class Content:
    """The description of a tensor to write.

    Attributes:
        spec: The variable.
        version: The version of the variable.
        rows: The rows of it, if the variable is a table or a slot of one.
        changed: The numbers of the rows to write, as int64, ascending, if the others are those of a
            base; None to write all.
        delta: What to write in place of the tensor; None to write that.
    """

    spec: VariableSpec
    version: int = 1
    rows: StoredRows | None = None
    changed: torch.Tensor | None = None
    delta: Delta | None = None

    @property
    def tensor(self) -> TensorSpec:
        """The description of the whole tensor."""
        return stored_tensor(self.spec, self.rows)

    @property
    def written(self) -> Sequence[tuple[str, TensorSpec]]:
        """The names and the descriptions of the tensors in the file; the values are the last one.

        No variable's name has brackets, so that nobody takes some rows for all of them.
        """
        name, whole = self.spec.name, stored_tensor(self.spec, self.rows)
        if self.delta is not None:
            return [(f"{name}[delta]", spec_of(self.delta.data))]
        if self.changed is None:
            return [(name, whole)]
        rows = some_rows(whole, len(self.changed))
        return [(f"{name}[changed]", spec_of(self.changed)), (f"{name}[rows]", rows)]


def write_part(
    folder: Folder,
    name: str,
    contents: Sequence[Content],
    values: Iterable[torch.Tensor],
    has_index: bool = True,
    options: WriteOptions = DURABLY,
) -> TensorFile:
    """Write tensors to a new file.

    Args:
        folder: The folder of the file.
        name: The name of the file, which must not exist yet.
        contents: The descriptions of the tensors.
        values: The values in the same order, each whole or in runs of its rows. They are taken one
            by one. Of one with `changed`, these numbers come first, then the rows; of one with
            `delta` it is the bytes of that.
        has_index: Whether an index describes the tables. Otherwise the metadata of the file do,
            which other programs ignore.
        options: How it is written.

    Raises:
        InvalidArgumentError: safetensors has no name for a dtype.
        OSError: The file cannot be written.
    """
    part = Part(name, contents, {} if has_index else _notes(contents), options.has_digests)
    folder.write(name, part.blocks(values), options.syncs)
    return part.file()


class Part:
    """A file of tensors that is made block by block, to be written or sent.

    Args:
        name: The name of the file.
        contents: The descriptions of the tensors.
        notes: Metadata of the file besides.
        has_digests: Whether its blocks get digests.

    Raises:
        InvalidArgumentError: safetensors has no name for a dtype.
    """

    def __init__(
        self,
        name: str,
        contents: Sequence[Content],
        notes: Mapping[str, str] | None = None,
        has_digests: bool = False,
    ) -> None:
        self._name, self._contents = name, contents
        self._head, self._begins = _header(contents, notes or {})
        self._account = Account(has_digests)

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        begins = zip(self._contents, self._begins, strict=True)
        ends = [
            begin + nbytes_of(tensor)
            for content, starts in begins
            for begin, (_, tensor) in zip(starts, content.written, strict=True)
        ]
        return max([len(self._head), *ends])

    def blocks(self, values: Iterable[torch.Tensor]) -> Iterator[memoryview]:
        """Yield its bytes, at most `BLOCK_BYTES` at a time; the values are as of `write_part`."""
        return self._account.counted(_runs(self._head, values))

    def file(self) -> TensorFile:
        """Return the description of the file, all of whose blocks were yielded."""
        tensors = []
        for each, begins in zip(self._contents, self._begins, strict=True):
            changed = None
            if each.changed is not None:
                changed = ChangedRows(count=len(each.changed), begin=begins[0])
            place = self._name, begins[-1]
            delta = None if each.delta is None else each.delta.described()
            tensors.append(TensorEntry(each.spec, *place, each.version, each.rows, changed, delta))
        return TensorFile(self._name, self._account.entry(), tensors)


FORMAT = 2
"""The greatest form of the parts that are sent; docs/architecture/publication.md describes it."""


def head_of_stream(link: VersionLink, file: SavedPart) -> ReadVersionResponse:
    """Return the message with which a part of a version begins, whose bytes follow."""
    described = SavedPart(name=file.name, nbytes=link.nbytes, tensors=file.tensors)
    part = VersionPart(link=link, format=FORMAT if has_deltas(file) else 1, file=described)
    return ReadVersionResponse(part=part)


def has_deltas(file: SavedPart) -> bool:
    """Return whether a file has a delta of a tensor."""
    return any(each.HasField("delta") for each in file.tensors)


def _runs(header: bytes, values: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    yield memoryview(header)
    for value in values:
        data = as_bytes(value)
        for start in range(0, len(data), BLOCK_BYTES):
            yield data[start : start + BLOCK_BYTES]


def _notes(contents: Sequence[Content]) -> dict[str, str]:
    """Return metadata that describe the tables, and the parts of variables, in a file."""
    tables = {
        content.spec.name: {
            "spec": MessageToDict(content.spec, preserving_proto_field_name=True),
            **({} if content.rows is None else {"count": content.rows.count}),
        }
        for content in contents
        if content.rows is not None or content.spec.HasField("partition")
    }
    return {NOTES: json.dumps(tables)} if tables else {}


def _header(contents: Sequence[Content], notes: Mapping[str, str]) -> tuple[bytes, list[list[int]]]:
    """Return the header of a file, and the positions of the tensors of each content in the file."""
    described: dict[str, object] = {"__metadata__": {"format": "pt", **notes}}
    offset, offsets = 0, []
    for content in contents:
        offsets.append(list[int]())
        for name, tensor in content.written:
            require_storable(name, tensor)
            end = offset + nbytes_of(tensor)
            described[name] = {
                "dtype": _NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [offset, end],
            }
            offsets[-1].append(offset)
            offset = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    return header, [[len(header) + start for start in starts] for starts in offsets]


def require_storable(name: str, tensor: TensorSpec) -> None:
    """Raise InvalidArgumentError if safetensors has no name for the dtype of a tensor."""
    if tensor.dtype not in _NAMES:
        raise InvalidArgumentError(
            f"checkpoints cannot contain values of {decode_dtype(tensor.dtype)}, the dtype "
            f"of variable {name!r}; create it outside of the strategy's scope",
            variable=name,
        )


def read_plain(folder: Folder, name: str) -> tuple[FileEntry, list[TensorEntry]]:
    """Return the contents of any safetensors file, without reading the values.

    Args:
        folder: The folder of the file.
        name: The name of the file.

    Raises:
        DataLossError: The file is not a safetensors file, or is damaged.
    """
    path = folder.path / name
    with folder.file(name) as opened:
        size = size_of(opened)
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        text = opened.read(min(length, _MOST_HEADER_BYTES))
    try:
        described = json.loads(text)
        metadata = described.pop("__metadata__", {})
        tables = json.loads(metadata.get(NOTES, "{}"))
        begin = _LENGTH_BYTES + length
        entries = [
            _noted(_plain_entry(name, begin, tensor, one), tables.get(tensor))
            for tensor, one in described.items()
        ]
        ends = [begin, *(entry.begin + entry.nbytes for entry in entries)]
    except _MISREADINGS as error:
        raise _no_safetensors(path, str(error)) from error
    if max(ends) != size:
        raise _no_safetensors(path, f"{size} bytes instead of {max(ends)}")
    file = FileEntry(size, None)
    require_sound({name: file}, entries, str(path))
    return file, entries


def _plain_entry(file: str, begin: int, name: str, described: dict[str, list[int]]) -> TensorEntry:
    spec = VariableSpec(name=name)
    spec.tensor.dtype = encode_dtype(_DTYPES[str(described["dtype"])])
    spec.tensor.shape.extend(described["shape"])
    start, end = described["data_offsets"]
    if start < 0 or end - start != nbytes_of(spec.tensor):
        raise ValueError(f"{name!r} has other bytes than its shape says")
    return TensorEntry(spec, file, begin + start)


def _noted(entry: TensorEntry, note: dict[str, Any] | None) -> TensorEntry:
    """Return an entry with the description of its table or part in the file's metadata."""
    if note is None:
        return entry
    spec = ParseDict(note["spec"], VariableSpec())
    rows = StoredRows(count=note["count"]) if "count" in note else None
    noted = replace(entry, spec=spec, rows=rows)
    if (noted.name, noted.tensor) != (entry.name, entry.tensor):
        raise ValueError(f"its metadata and its header differ about table {entry.name!r}")
    return noted


def _no_safetensors(path: Place, why: str) -> DataLossError:
    return DataLossError(
        f"{str(path)!r} is not a checkpoint, or is damaged ({why}); restore an earlier one"
    )
