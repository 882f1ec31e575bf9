"""The table of contents of a checkpoint: its format, and whether it can be true."""

from __future__ import annotations

import hmac
import json
import secrets
import zlib
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError

from stratagem_proto.division import is_part
from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    StratagemError,
)
from stratagem_proto.proofs import signature_of_checkpoint
from stratagem_proto.protocol import release
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_proto.v1 import checkpoint_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_INT32, DATA_TYPE_INT64, DataType, TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import nbytes_of
from stratagem_storage.checkpoint.entries import (
    BLOCK_BYTES,
    COUNTS,
    DIGEST_BYTES,
    KEYS,
    SEEN,
    SIGHTS,
    TOUCHED,
    FileEntry,
    TensorEntry,
    TensorFile,
)
from stratagem_storage.open_folders import is_plain_name
from stratagem_storage.stores.store import is_checkpoint

MOST_BASES = 64
"""How many checkpoints there may be that have what one lacks."""

_MOST = 1 << 63
# The highest bits of a version identify a run of the server; see `stratagem_proto.protocol`.
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
    lacking = [entry.name for entry in tensors if entry.needs_base]
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
    if entry.changed is not None and entry.delta is not None:
        yield f"tensor {name!r} has both some rows and a delta"
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


def _is_sound(history: pb.TableHistory) -> bool:
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


# Its format is a number: 5 if it has deltas, else 4 if it has parts that take rows in turn, else 3
# if the checkpoint is read beside a base, else 2 if it has tables with stored rows, else 1. A
# release reads all formats up to its own, and writes the lowest that suffices. So an earlier
# release can read every checkpoint without newer features.

_WITHOUT_TABLES, _WITH_TABLES, _WITH_BASE, _INTERLEAVED, _WITH_DELTAS = 1, 2, 3, 4, 5
FORMAT = _WITH_DELTAS

MOST_INDEX_BYTES = 256 << 20
"""The most bytes of an index; that of a checkpoint of 1 TB has about 12 MB, signed 60."""

_SIGNATURE = "signature"


@dataclass(frozen=True)
class Base:
    """The earlier checkpoint beside which another one is read.

    Attributes:
        identity: Its identity.
        names: The name of its folder, and of those of the checkpoints that it is itself read
            beside, the nearest first. All are in one folder.
    """

    identity: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Published:
    """Which version a checkpoint is, for those who follow its folder.

    Attributes:
        version: Its number, which grows from one to the next in a folder.
        cut: The moment of the cluster, 16 random bytes.
        milliseconds: When it was taken, since 1970 by the clock of who saved it.
        training: What was trained; b"" if the states of servers say it.
    """

    version: int
    cut: bytes
    milliseconds: int
    training: bytes = b""


@dataclass(frozen=True)
class Index:
    """The table of contents of a checkpoint.

    Attributes:
        files: The sizes and checksums of its files, by name.
        tensors: The places of its tensors, by the name of the variable.
        servers: The state of each server besides variables, by its part file.
        extra: What the program has saved with it.
        identity: A random name, by which copies of the checkpoint are recognised.
        workers: The "count" of workers, and their "states" by task and by the name that the program
            has given each state.
        base: The checkpoint that has the rows which this one lacks, if it lacks any.
        published: Which version it is; None if an earlier release has written it.
        ended: Whether it is the last one of a run that is over.
    """

    files: Mapping[str, FileEntry]
    tensors: Mapping[str, TensorEntry]
    servers: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    identity: str = ""
    workers: Mapping[str, Any] = field(default_factory=dict)
    base: Base | None = None
    published: Published | None = None
    ended: bool = False

    @property
    def bases(self) -> tuple[str, ...]:
        """The names of all checkpoints that have what this one lacks, the nearest first."""
        return () if self.base is None else self.base.names

    @classmethod
    def of_parts(
        cls,
        parts: Sequence[TensorFile],
        servers: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        workers: Mapping[str, Any] | None = None,
        base: Base | None = None,
    ) -> Index:
        """Return the index of files that were written, perhaps beside a base.

        Raises:
            InvalidArgumentError: Two files have a tensor of the same name.
        """
        tensors: dict[str, TensorEntry] = {}
        for entry in (entry for part in parts for entry in part.tensors):
            name = entry.spec.name
            other = tensors.setdefault(name, entry)
            if other is not entry:
                raise InvalidArgumentError(
                    f"{entry.file!r} and {other.file!r} both have {name!r}; give each variable a "
                    "name of its own",
                    variable=name,
                )
        files = {part.name: part.file for part in parts}
        identity = secrets.token_hex(16)
        needed = base if any(entry.needs_base for entry in tensors.values()) else None
        return cls(files, tensors, servers or {}, extra or {}, identity, workers or {}, needed)

    def to_bytes(self, key: str = "") -> bytes:
        """Return the index as the bytes of a file, with a checksum that covers all of them.

        Args:
            key: The key to sign it with; "" for none.

        Raises:
            InvalidArgumentError: It is larger than readers accept.
            FailedPreconditionError: Some files were written for an index that is signed, and some
                not, or it is not.
        """
        _require_digests(self.files, key)
        content = {
            "format": self._format,
            "release": release(),
            "identity": self.identity,
            "files": {name: _file_to_json(one) for name, one in self.files.items()},
            **_tensors_to_json(self.tensors),
            "servers": dict(self.servers),
            "extra": dict(self.extra),
            "workers": dict(self.workers),
            **_base_to_json(self.base),
            **_published_to_json(self.published),
            **({"ended": True} if self.ended else {}),
        }
        text = _canonical(content)
        document = {"content": content, "crc32": zlib.crc32(text)}
        if key:
            document[_SIGNATURE] = signature_of_checkpoint(key, text).hex()
        data = _canonical(document)
        if len(data) > MOST_INDEX_BYTES:
            raise InvalidArgumentError(
                f"the index of the checkpoint has {len(data)} bytes, and may have "
                f"{MOST_INDEX_BYTES}; pass less as extra"
            )
        return data

    @property
    def _format(self) -> int:
        specs = [entry.spec for entry in self.tensors.values()]
        if any(entry.delta is not None for entry in self.tensors.values()):
            return _WITH_DELTAS
        if any(spec.partition.HasField("interleaved") for spec in specs):
            return _INTERLEAVED
        if self.base is not None:
            return _WITH_BASE
        has_tables = any(entry.rows is not None for entry in self.tensors.values())
        return _WITH_TABLES if has_tables else _WITHOUT_TABLES

    @classmethod
    def from_bytes(cls, data: bytes, where: str, key: str = "") -> Index:
        """Return the index that a file contains.

        Args:
            data: The bytes of the file.
            where: Its path, for messages.
            key: The key that has to have signed it; "" to take it unsigned_error, too.

        Raises:
            DataLossError: It is damaged, or what it says cannot be.
            FailedPreconditionError: A later release wrote it.
            PermissionDeniedError: The key has not signed it.
        """
        document = _checked(data, where)
        content = document["content"]
        if key:
            _require_signature(document, where, key)
        with refused_if_unsound(where):
            _require_known_format(content, where)
            files = {name: _file_from_json(one) for name, one in content["files"].items()}
            tensors = _tensors_from_json(content["tensors"], content.get("origins", {}), where)
            base = _base_from_json(content.get("base"))
            require_sound(files, tensors, where)
            require_sound_base(() if base is None else base.names, tensors, where)
            return cls(
                files,
                {entry.name: entry for entry in tensors},
                {name: dict(facts) for name, facts in content["servers"].items()},
                dict(content["extra"]),
                str(content["identity"]),
                dict(content.get("workers", {})),
                base,
                _published_from_json(content.get("published")),
                bool(content.get("ended", False)),
            )


def _require_known_format(content: Mapping[str, Any], where: str) -> None:
    if content["format"] > FORMAT:
        raise FailedPreconditionError(
            f"{where!r} has format {content['format']} of checkpoints, by stratagem "
            f"{content.get('release') or 'of an unknown release'}; this one, "
            f"{release() or 'a bare clone'}, reads formats up to {FORMAT}. Install that release, "
            "or a later one"
        )


def _tensors_from_json(
    items: Sequence[Mapping[str, Any]], origins: Mapping[str, Any], where: str
) -> list[TensorEntry]:
    try:
        found = [_tensor_from_json(one) for one in items]
        for entry in found:
            if entry.name in origins:
                ParseDict(origins[entry.name], entry.spec.origin, ignore_unknown_fields=True)
        return found
    except ParseError as error:
        raise FailedPreconditionError(
            f"{where!r} describes a variable as this release of stratagem cannot: "
            f"{error}; install a later one"
        ) from error


def unsigned_error(where: str, why: str) -> PermissionDeniedError:
    """Return the error for a checkpoint that nobody with the key has vouched for."""
    return PermissionDeniedError(
        f"{where!r} {why}, and this process opens only what its key of checkpoints has signed. If "
        "you trust what is there, sign it by `stratagem checkpoint sign`, or else restore another "
        "checkpoint"
    )


def _require_signature(document: Mapping[str, Any], where: str, key: str) -> None:
    signature = document.get(_SIGNATURE)
    if signature is None:
        raise unsigned_error(where, "is not signed")
    expected = signature_of_checkpoint(key, _canonical(document["content"])).hex()
    if not hmac.compare_digest(str(signature).encode(), expected.encode()):
        raise unsigned_error(where, "was altered since it was signed, or is of another cluster")


def _require_digests(files: Mapping[str, FileEntry], key: str) -> None:
    lacking = [name for name, file in files.items() if file.digests is None]
    if key and lacking:
        raise FailedPreconditionError(
            f"{', '.join(lacking)} cannot be signed, since who wrote it has no key of checkpoints; "
            f"give all servers and the program the same --checkpoint-key-file, or "
            f"{CHECKPOINT_KEY_FILE.variable}"
        )
    if not key and len(lacking) < len(files):
        raise FailedPreconditionError(
            "servers have a key of checkpoints, and the program that saves has none, so that "
            f"they would refuse the checkpoint; set {CHECKPOINT_KEY_FILE.variable} to the file "
            "with the key"
        )


def _checked(data: bytes, where: str) -> dict[str, Any]:
    """Return the document of an index, whose bytes are those that were written."""
    try:
        document: dict[str, Any] = json.loads(data)
        content = document["content"]
        # In JSON other bytes can have the same meaning, such as \u00e9 and \u00E9.
        intact = data == _canonical(document)
        intact = intact and document["crc32"] == zlib.crc32(_canonical(content))
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise DataLossError(
            f"{where!r} is not an index of a checkpoint, or is damaged; restore an earlier "
            "checkpoint"
        )
    return document


def _canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _file_to_json(entry: FileEntry) -> dict[str, Any]:
    item: dict[str, Any] = {"nbytes": entry.nbytes, "blocks": entry.blocks}
    if entry.digests is not None:
        item["digests"] = b64encode(entry.digests).decode()
    return item


def _file_from_json(item: Mapping[str, Any]) -> FileEntry:
    digests = b64decode(item["digests"]) if "digests" in item else None
    return FileEntry(item["nbytes"], tuple(item["blocks"]), digests)


_message_to_json = partial(MessageToDict, preserving_proto_field_name=True)


def _tensors_to_json(entries: Mapping[str, TensorEntry]) -> dict[str, Any]:
    items, origins = [], {}
    for name, entry in entries.items():
        spec = _message_to_json(entry.spec)
        # Apart from the tensors, so that earlier releases pass over it.
        if "origin" in spec:
            origins[name] = spec.pop("origin")
        item = {"spec": spec, "file": entry.file, "begin": entry.begin, "version": entry.version}
        kept = {"rows": entry.rows, "changed": entry.changed, "delta": entry.delta}
        item |= {key: _message_to_json(one) for key, one in kept.items() if one is not None}
        items.append(item)
    return {"tensors": items, "origins": origins} if origins else {"tensors": items}


def _base_to_json(base: Base | None) -> dict[str, Any]:
    names = None if base is None else {"identity": base.identity, "names": list(base.names)}
    return {} if names is None else {"base": names}


def _base_from_json(item: Mapping[str, Any] | None) -> Base | None:
    if item is None:
        return None
    return Base(str(item["identity"]), tuple(map(str, item["names"])))


def _published_to_json(one: Published | None) -> dict[str, Any]:
    if one is None:
        return {}
    facts = {"version": one.version, "cut": one.cut.hex(), "milliseconds": one.milliseconds}
    return {"published": facts | ({"training": one.training.hex()} if one.training else {})}


def _published_from_json(item: Mapping[str, Any] | None) -> Published | None:
    if item is None:
        return None
    numbers = item["version"], item["milliseconds"]
    if not all(map(is_count, numbers)) or not numbers[0]:
        raise ValueError(f"{item!r} is no version")
    texts = item["cut"], item.get("training", "")
    return Published(numbers[0], bytes.fromhex(texts[0]), numbers[1], bytes.fromhex(texts[1]))


def _tensor_from_json(item: Mapping[str, Any]) -> TensorEntry:
    spec = ParseDict(item["spec"], VariableSpec())
    rows = ParseDict(item["rows"], pb.StoredRows()) if "rows" in item else None
    changed = ParseDict(item["changed"], pb.ChangedRows()) if "changed" in item else None
    delta = ParseDict(item["delta"], pb.ByteDelta()) if "delta" in item else None
    return TensorEntry(spec, item["file"], item["begin"], item["version"], rows, changed, delta)
