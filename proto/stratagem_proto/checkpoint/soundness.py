"""Whether a table of contents can be true: checked before memory is taken for what it says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from stratagem_proto.checkpoint.blocks import BLOCK_BYTES, DIGEST_BYTES, FileEntry
from stratagem_proto.checkpoint.companions import COUNTS, KEYS, SEEN, SIGHTS, TOUCHED
from stratagem_proto.division import is_part
from stratagem_proto.errors import DataLossError, InvalidArgumentError, StratagemError
from stratagem_proto.open_folders import is_plain_name
from stratagem_proto.stores.names import is_checkpoint
from stratagem_proto.v1.checkpoint_pb2 import TableHistory
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_INT32, DATA_TYPE_INT64, DataType, TensorSpec
from stratagem_proto.wire.tensors import nbytes_of

if TYPE_CHECKING:
    from stratagem_proto.checkpoint.entries import TensorEntry

MOST_BASES = 64
"""How many checkpoints there may be that have what one lacks."""

_MOST = 1 << 63
# The highest bits of a version identify a run of the server; see `stratagem_proto.versions`.
_VERSIONS = 1 << 64

_MISREADINGS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    DecodeError,
)

_COMPANIONS = (KEYS, TOUCHED, COUNTS, SEEN, SIGHTS)
_HISTORY = ("writes", "swept", "evicted_rows", "dropped_gradients", "aged", "milliseconds")


def require_sound(
    files: Mapping[str, FileEntry], tensors: Collection[TensorEntry], where: str
) -> None:
    """Check a table of contents.

    Args:
        files: The files, by name.
        tensors: The tensors in them.
        where: Whose contents they are, for messages.

    Raises:
        DataLossError: Names lead elsewhere or repeat, or sizes and places are not what they can be.
    """
    wrong = next(_wrongs(files, tensors), None)
    if wrong is not None:
        raise _unsound(where, wrong)


def require_sound_base(names: Sequence[str], tensors: Collection[TensorEntry], where: str) -> None:
    """Check what a table of contents says of the checkpoints that have what this one lacks.

    Args:
        names: The names of these checkpoints.
        tensors: The tensors of this one.
        where: Whose contents they are, for messages.

    Raises:
        DataLossError: It cannot be.
    """
    lacking = [entry.name for entry in tensors if entry.changed is not None]
    if bool(lacking) != bool(names):
        raise _unsound(where, f"{len(lacking)} tensors lack rows, and it names {len(names)} bases")
    if len({*names}) < len(names) or len(names) > MOST_BASES or not all(map(is_checkpoint, names)):
        raise _unsound(where, "what it names as its bases are none")


def _unsound(where: str, why: str) -> DataLossError:
    return DataLossError(
        f"{where!r} is not what any release of stratagem has written: {why}; restore an earlier "
        "checkpoint"
    )


def _wrongs(files: Mapping[str, FileEntry], tensors: Collection[TensorEntry]) -> Iterator[str]:
    for name, file in files.items():
        yield from _of_file(name, file)
    known: dict[str, TensorEntry] = {}
    for entry in tensors:
        if known.setdefault(entry.name, entry) is not entry:
            yield f"it has two tensors {entry.name!r}"
        yield from _of_tensor(entry, files)
    for entry in tensors:
        if entry.rows is not None:
            yield from _of_stored_rows(entry, known)
    yield from _overlaps(tensors)


def is_count(value: object) -> bool:
    """Return whether a value of JSON is a number of things or bytes."""
    return type(value) is int and 0 <= value < _MOST


def _is_version(value: object) -> bool:
    return type(value) is int and 0 <= value < _VERSIONS


def _of_file(name: str, file: FileEntry) -> Iterator[str]:
    if not is_plain_name(name):
        yield f"file {name!r} is not a plain name of its folder"
    if not is_count(file.nbytes):
        yield f"file {name!r} has {file.nbytes!r} bytes"
    elif file.blocks is not None and len(file.blocks) != -(-file.nbytes // BLOCK_BYTES):
        yield f"file {name!r} has {file.nbytes} bytes and {len(file.blocks)} checksums"
    elif file.digests is not None and len(file.digests) != DIGEST_BYTES * len(file.blocks or ()):
        yield f"file {name!r} has {file.nbytes} bytes and {len(file.digests)} bytes of digests"


def _of_tensor(entry: TensorEntry, files: Mapping[str, FileEntry]) -> Iterator[str]:
    name = entry.name
    if entry.file not in files:
        yield f"tensor {name!r} is in {entry.file!r}, which is none of its files"
    elif not (is_count(entry.begin) and _is_version(entry.version)):
        yield f"tensor {name!r} begins at {entry.begin!r} and has version {entry.version!r}"
    else:
        yield from _of_sizes(entry, files[entry.file].nbytes)


def _of_sizes(entry: TensorEntry, file_bytes: int) -> Iterator[str]:
    spec, name = entry.spec, entry.name
    try:
        end = max(begin + nbytes for begin, nbytes in entry.extents)
        nbytes_of(entry.tensor)
        nbytes_of(spec.tensor)
        nbytes_of(TensorSpec(dtype=spec.tensor.dtype, shape=spec.partition.full_shape))
    except (InvalidArgumentError, ValueError) as error:
        yield f"tensor {name!r} cannot be: {error}"
        return
    if end > file_bytes:
        yield f"tensor {name!r} ends at byte {end} of {file_bytes} bytes of {entry.file!r}"
    if spec.HasField("partition"):
        yield from _of_partition(entry)


def _of_partition(entry: TensorEntry) -> Iterator[str]:
    tensor, partition = entry.spec.tensor, entry.spec.partition
    if not tensor.shape or len(tensor.shape) != len(partition.full_shape):
        yield f"tensor {entry.name!r} is a part with other dimensions than the whole"
    elif not is_part(entry.spec):
        yield f"tensor {entry.name!r} is no part of shape {list(partition.full_shape)}"


def _of_stored_rows(entry: TensorEntry, known: Mapping[str, TensorEntry]) -> Iterator[str]:
    assert entry.rows is not None
    table = known.get(entry.spec.slot_of, entry)
    if table.rows is None or table.rows.count != entry.rows.count:
        yield f"{entry.name!r} has other rows than its table {table.name!r}"
    elif not entry.spec.tensor.shape or not table.spec.tensor.shape:
        yield f"table {entry.name!r} has no rows in its shape"
    elif not _is_sound(entry.rows.history):
        yield f"table {entry.name!r} has a history that cannot be"
    elif table is entry:
        yield from _of_companions(entry, known)


def _is_sound(history: TableHistory) -> bool:
    moments = [(one.milliseconds, one.writes) for one in history.moments]
    moments.append((history.milliseconds, history.writes))
    ascend = all(a <= c and b <= d for (a, b), (c, d) in pairwise(moments))
    return ascend and all(getattr(history, name) < _MOST for name in _HISTORY)


def _of_companions(table: TensorEntry, known: Mapping[str, TensorEntry]) -> Iterator[str]:
    """Yield what is wrong with what a table needs beside its values."""
    assert table.rows is not None
    rows, name, dynamic = table.rows.count, table.name, table.spec.table.dynamic
    keys, touched, counts, seen, sights = (known.get(name + what) for what in _COMPANIONS)
    if not table.spec.table.HasField("dynamic") and rows > table.spec.tensor.shape[0]:
        yield f"table {name!r} has {rows} rows of {table.spec.tensor.shape[0]}"
    if dynamic.part >= max(1, dynamic.parts):
        yield f"table {name!r} is part {dynamic.part} of {dynamic.parts}"
    if keys is None or not all(_is_vector(one, rows) for one in (keys, touched) if one):
        yield f"table {name!r} does not have a key, and a time, for each of its {rows} rows"
    if counts and not _is_vector(counts, rows, DATA_TYPE_INT32):
        yield f"table {name!r} does not have a count for each of its {rows} rows"
    if (seen is None) != (sights is None) or (seen and sights and not _fit(seen, sights)):
        yield f"table {name!r} does not have a count for each key that it has seen"


def _fit(seen: TensorEntry, sights: TensorEntry) -> bool:
    size = max(seen.tensor.shape, default=0)
    return _is_vector(seen, size) and _is_vector(sights, size)


def _is_vector(entry: TensorEntry, size: int, dtype: DataType = DATA_TYPE_INT64) -> bool:
    return (list(entry.tensor.shape), entry.tensor.dtype) == ([size], dtype)


def _overlaps(tensors: Collection[TensorEntry]) -> Iterator[str]:
    by_file: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for entry in tensors:
        for begin, nbytes in entry.extents:
            if nbytes:
                by_file[entry.file].append((begin, begin + nbytes, entry.name))
    for file, extents in by_file.items():
        extents.sort()
        for (_, end, name), (begin, _, following) in pairwise(extents):
            if end > begin:
                yield f"tensors {name!r} and {following!r} overlap in {file!r}"


@contextmanager
def refused_if_unsound(where: str) -> Iterator[None]:
    """Refuse a checkpoint of which something is not there, or is of another kind.

    Args:
        where: Which one it is, for messages.

    Raises:
        DataLossError: The body looked for something in it in vain.
    """
    try:
        yield
    except StratagemError:
        raise
    except _MISREADINGS as error:
        raise _unsound(where, f"{type(error).__name__} {error}") from error
