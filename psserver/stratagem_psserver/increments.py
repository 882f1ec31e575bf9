"""Increments: what leads from one version of a server to the next, as a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from stratagem_proto.v1.checkpoint_pb2 import SavedPart
from stratagem_proto.v1.publication_pb2 import VersionLink
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import as_bytes, nbytes_of
from stratagem_psserver.environment import LARGE_BYTES
from stratagem_psserver.tables.table import KEY_CHANGED, VALUE_CHANGED
from stratagem_psserver.variables.snapshots import Snapshot, SnapshotValue, WholeValue, runs_of
from stratagem_psserver.variables.store import Variable
from stratagem_storage.checkpoint.deltas import LEAST_BYTES, Delta, delta_between
from stratagem_storage.checkpoint.entries import (
    KEYS,
    NUMBER_BYTES,
    row_count,
    row_nbytes,
)
from stratagem_storage.checkpoint.folder import part_name
from stratagem_storage.checkpoint.parts import Content, Part

# Dense values that have changed are copied at once up to so many bytes in all. Larger ones are
# copied when they change next, which costs them their place in joint memory.
_COPIED_BYTES = 8 << 20

# Of so many rows of tables it is looked up at once how many have changed.
_LOOKED_UP_ROWS = 1 << 20

# A row with another key has the bits of both.
_VALUE_BIT, _KEY_BIT = VALUE_CHANGED, KEY_CHANGED & ~VALUE_CHANGED

_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(eq=False)
class PublishedVersion:
    """A version whose values are there.

    Attributes:
        link: Its number, its cut, and the bytes of all its values.
        snapshot: Keeps the values while variables change.
        copies: Of dense values that it does not keep, by name.
        contents: What a whole part has.
        values: Their values, in the same order.
        own: The values of the publisher, by name.
        users: How many read them now.
        touched: When one of those has read last.
        is_latest: Whether there is no later version.
    """

    link: VersionLink
    snapshot: Snapshot
    copies: Mapping[str, torch.Tensor]
    touched: float
    own: dict[str, torch.Tensor] = field(default_factory=dict)
    users: int = 0
    is_latest: bool = True

    def __post_init__(self) -> None:
        # The snapshot forgets its own once it is closed.
        self.contents: list[Content] = [*self.snapshot.contents]
        self.values: list[SnapshotValue] = [*self.snapshot.values]

    def add_own(self, specs: Iterable[VariableSpec], tensors: Iterable[torch.Tensor]) -> None:
        """Add the values of the publisher."""
        for spec, tensor in zip(specs, tensors, strict=True):
            self.contents.append(Content(spec))
            self.values.append(WholeValue(tensor))
            self.own[spec.name] = tensor
        self.link.nbytes = sum(nbytes_of(each.tensor) for each in self.contents)

    @cached_property
    def dense(self) -> Mapping[str, torch.Tensor]:
        """The values that are no rows of tables, by name; those of the publisher, too."""
        both = zip(self.contents, self.values, strict=True)
        return {
            content.spec.name: value.value
            for content, value in both
            if isinstance(value, WholeValue)
        }

    def bases_of(self, later: PublishedVersion) -> dict[str, torch.Tensor]:
        """Return the values that a later version can have a delta to; while nothing is applied.

        A value that has changed since has got other memory before, so nobody writes to these any
        more, whether or not this version is kept.
        """
        return {
            name: value
            for name, value in self.dense.items()
            if value.nbytes >= LEAST_BYTES
            and (other := later.dense.get(name)) is not None
            and (value.dtype, value.shape) == (other.dtype, other.shape)
            and value.data_ptr() != other.data_ptr()
        }


@dataclass(frozen=True)
class Increment:
    """What leads from a version to the next one, as a file.

    Attributes:
        link: From which version to which one.
        file: Its description, with the checksums.
        blocks: Its bytes.
    """

    link: VersionLink
    file: SavedPart
    blocks: Sequence[bytes]


@dataclass
class KnownVersion:
    """What is known of the last version besides its values.

    Attributes:
        version: Its number; 0 before the first.
        cut: Its cut.
        published_at: As in `PublishHeader`.
        publisher: Names the program that has published it.
        versions: The versions of its dense variables, by name.
    """

    version: int = 0
    cut: bytes = b""
    published_at: int = 0
    publisher: bytes = b""
    versions: dict[str, int] = field(default_factory=dict)


class SmallCopies:
    """Copies of small dense values, of which those that have not changed are made once.

    Args:
        versions: The versions of variables at the version before.
        reused: The copies that were made for it.

    Attributes:
        made: The copies, by name.
    """

    def __init__(self, versions: Mapping[str, int], reused: Mapping[str, torch.Tensor]) -> None:
        self._versions, self._reused = versions, reused
        self._left = _COPIED_BYTES
        self.made: dict[str, torch.Tensor] = {}

    def of(self, variable: Variable) -> torch.Tensor | None:
        """Return a copy of a value; None if it is too large."""
        name, value = variable.name, variable.value
        is_same = self._versions.get(name) == variable.version
        copy = self._reused.get(name) if is_same else None
        if copy is None:
            if value.nbytes > self._left:
                return None
            copy = value.clone()
        self._left -= value.nbytes
        self.made[name] = copy
        return copy


@dataclass(frozen=True)
class NextIncrement:
    """What leads from the version before to a version.

    Attributes:
        task: The index of the server's task.
        version: The version.
        before: What is known of the version before.
        own: The values of its publisher, by name.
        changes: What has changed in each table since, as by `Table.publish`.
        bases: The dense values of the version before that later ones have left, by name.
    """

    task: int
    version: PublishedVersion
    before: KnownVersion
    own: Mapping[str, torch.Tensor]
    changes: Mapping[str, torch.Tensor | None]
    bases: Mapping[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Return about how many bytes the increment goes through."""
        tables = [each for each in self.changes.values() if each is not None]
        if self.bases or sum(map(len, tables)) > _LOOKED_UP_ROWS:
            return LARGE_BYTES
        nbytes = 0
        for content in self.version.contents:
            marks = self.changes.get(content.spec.name)
            rows = row_count(content.tensor) if marks is None else int(marks.count_nonzero())
            if marks is not None or not self._is_same(content):
                nbytes += rows * (row_nbytes(content.tensor) + NUMBER_BYTES)
        return nbytes

    def increment(self) -> Increment:
        """Make it; on any thread."""
        contents, values = list[Content](), self.version.values
        for content in self.version.contents:
            changed = self._changed(content)
            delta = self._delta(content) if changed is None else None
            contents.append(replace(content, changed=changed, delta=delta))
        part = Part(part_name(self.task), contents)
        blocks = [bytes(block) for block in part.blocks(written_values(contents, values))]
        link = VersionLink(previous=self.before.version, previous_cut=self.before.cut)
        link.MergeFrom(self.version.link)
        link.nbytes = part.nbytes
        return Increment(link, part.file().encoded(), blocks)

    def _delta(self, content: Content) -> Delta | None:
        base, values = self.bases.get(content.spec.name), self.version.dense
        return None if base is None else delta_between(base, values[content.spec.name])

    def _changed(self, content: Content) -> torch.Tensor | None:
        """Return the numbers of the rows that may differ; None for all."""
        tensor, name = content.tensor, content.spec.name
        if tensor.shape and not row_nbytes(tensor):
            return None
        if name not in self._tables:
            return _NONE if self._is_same(content) else None
        marks, mask = self._tables[name]
        if marks is None:
            return None
        changed = marks.bitwise_and(mask).nonzero().squeeze(1)
        size = row_nbytes(tensor)
        # With their numbers they take no less than all rows.
        is_less = len(changed) * (size + NUMBER_BYTES) < len(marks) * size
        return changed if is_less or not len(changed) else None

    @cached_property
    def _tables(self) -> Mapping[str, tuple[torch.Tensor | None, int]]:
        """The marks of each tensor of a table, and the bit in them that is about it."""
        values = {name: (marks, _VALUE_BIT) for name, marks in self.changes.items()}
        return values | {name + KEYS: (marks, _KEY_BIT) for name, marks in self.changes.items()}

    def _is_same(self, content: Content) -> bool:
        """Return whether a dense value is that of the version before."""
        name = content.spec.name
        own, was = self.version.own.get(name), self.own.get(name)
        if own is not None:
            is_like = was is not None and (was.dtype, was.shape) == (own.dtype, own.shape)
            return was is not None and is_like and _same_bytes(own, was)
        return self.before.versions.get(name) == content.version


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return as_bytes(one) == as_bytes(other)


def written_values(
    contents: Sequence[Content], values: Sequence[SnapshotValue]
) -> Iterator[torch.Tensor]:
    for content, value in zip(contents, values, strict=True):
        yield from runs_of(content, value)
