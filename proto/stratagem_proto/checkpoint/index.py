"""The table of contents of a checkpoint.

Its format is a number: 4 if it has parts that take rows in turn, else 3 if the checkpoint is read
beside a base, else 2 if it has tables with stored rows, else 1. A release reads all formats up to
its own, and writes the lowest that suffices. So an earlier release can read every
checkpoint without newer features.
"""

from __future__ import annotations

import hmac
import json
import secrets
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from stratagem_proto.checkpoint.blocks import FileEntry
from stratagem_proto.checkpoint.entries import TensorEntry, TensorFile
from stratagem_proto.checkpoint.soundness import (
    refused_if_unsound,
    require_sound,
    require_sound_base,
)
from stratagem_proto.configuration.checkpoint_key import VARIABLE
from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
)
from stratagem_proto.proofs import signature_of_checkpoint
from stratagem_proto.v1.checkpoint_pb2 import ChangedRows, StoredRows
from stratagem_proto.v1.variable_pb2 import VariableSpec

_WITHOUT_TABLES, _WITH_TABLES, _WITH_BASE, _INTERLEAVED = 1, 2, 3, 4
FORMAT = _INTERLEAVED

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
    """

    files: Mapping[str, FileEntry]
    tensors: Mapping[str, TensorEntry]
    servers: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    identity: str = ""
    workers: Mapping[str, Any] = field(default_factory=dict)
    base: Base | None = None

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
            other = tensors.setdefault(entry.name, entry)
            if other is not entry:
                raise InvalidArgumentError(
                    f"{entry.file!r} and {other.file!r} both have {entry.name!r}; give "
                    "each variable a name of its own",
                    variable=entry.name,
                )
        files = {part.name: part.file for part in parts}
        identity = secrets.token_hex(16)
        needed = base if any(entry.changed is not None for entry in tensors.values()) else None
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
            "identity": self.identity,
            "files": {name: _file_to_json(one) for name, one in self.files.items()},
            "tensors": [_tensor_to_json(one) for one in self.tensors.values()],
            **_origins_to_json(self.tensors.values()),
            "servers": dict(self.servers),
            "extra": dict(self.extra),
            "workers": dict(self.workers),
            **_base_to_json(self.base),
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
            key: The key that has to have signed it; "" to take it unsigned, too.

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
            )


def _require_known_format(content: Mapping[str, Any], where: str) -> None:
    if content["format"] > FORMAT:
        raise FailedPreconditionError(
            f"{where!r} has format {content['format']}; this release of stratagem "
            f"reads formats up to {FORMAT}; install a later one"
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


def unsigned(where: str, why: str) -> PermissionDeniedError:
    """Return the error for a checkpoint that nobody with the key has vouched for."""
    return PermissionDeniedError(
        f"{where!r} {why}, and this process opens only what its key of checkpoints has signed. If "
        "you trust what is there, sign it by `stratagem checkpoint sign`, or else restore another "
        "checkpoint"
    )


def _require_signature(document: Mapping[str, Any], where: str, key: str) -> None:
    signature = document.get(_SIGNATURE)
    if signature is None:
        raise unsigned(where, "is not signed")
    expected = signature_of_checkpoint(key, _canonical(document["content"])).hex()
    if not hmac.compare_digest(str(signature).encode(), expected.encode()):
        raise unsigned(where, "was altered since it was signed, or is of another cluster")


def _require_digests(files: Mapping[str, FileEntry], key: str) -> None:
    lacking = [name for name, file in files.items() if file.digests is None]
    if key and lacking:
        raise FailedPreconditionError(
            f"{', '.join(lacking)} cannot be signed, since who wrote it has no key of checkpoints; "
            f"give all servers and the program the same --checkpoint-key-file, or {VARIABLE}"
        )
    if not key and len(lacking) < len(files):
        raise FailedPreconditionError(
            "servers have a key of checkpoints, and the program that saves has none, so that "
            f"they would refuse the checkpoint; set {VARIABLE} to the file with the key"
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


def _origins_to_json(entries: Iterable[TensorEntry]) -> dict[str, Any]:
    """Return what is apart from the tensors, so that earlier releases pass over it."""
    found = {
        entry.name: _message_to_json(entry.spec.origin)
        for entry in entries
        if entry.spec.HasField("origin")
    }
    return {"origins": found} if found else {}


def _tensor_to_json(entry: TensorEntry) -> dict[str, Any]:
    spec = _message_to_json(entry.spec)
    spec.pop("origin", None)
    item = {
        "spec": spec,
        "file": entry.file,
        "begin": entry.begin,
        "version": entry.version,
    }
    if entry.rows is not None:
        item["rows"] = _message_to_json(entry.rows)
    if entry.changed is not None:
        item["changed"] = _message_to_json(entry.changed)
    return item


def _base_to_json(base: Base | None) -> dict[str, Any]:
    if base is None:
        return {}
    return {"base": {"identity": base.identity, "names": list(base.names)}}


def _base_from_json(item: Mapping[str, Any] | None) -> Base | None:
    if item is None:
        return None
    return Base(str(item["identity"]), tuple(map(str, item["names"])))


def _message_to_json(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


def _tensor_from_json(item: Mapping[str, Any]) -> TensorEntry:
    spec = ParseDict(item["spec"], VariableSpec())
    rows = ParseDict(item["rows"], StoredRows()) if "rows" in item else None
    changed = ParseDict(item["changed"], ChangedRows()) if "changed" in item else None
    return TensorEntry(spec, item["file"], item["begin"], item["version"], rows, changed)
