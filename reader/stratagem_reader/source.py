"""Where versions come from: the seam between what is followed and who follows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from stratagem_proto.programs.optimizers import SlotName
from stratagem_storage.checkpoint.entries import KEYS, FileEntry, TensorEntry, is_companion
from stratagem_storage.checkpoint.index import require_sound


@dataclass(frozen=True)
class Version:
    """A version that all parts of a source have.

    Attributes:
        number: Its number, which only grows.
        cut: Of which moment of the cluster it is; b"" if the source does not say.
        published: When it was published, in seconds since 1970 by this machine's clock.
        training: What was trained; b"" if the source does not say.
    """

    number: int
    cut: bytes
    published: float
    training: bytes = b""


Extent: TypeAlias = tuple[int, memoryview]
"""A position in a file, and the memory that the bytes from there on belong into."""


class VersionPart(Protocol):
    """A part of a version: all of it, or what differs from an earlier version.

    It is either read or copied, and once.
    """

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def version(self) -> Version:
        """The version that it leads to."""
        ...

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """The sizes of its files by name; and their checksums, of a stream once it has ended."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """All tensors that the part has in this version, and what its files have of them."""
        ...

    def read(self, extents: Mapping[str, Sequence[Extent]]) -> None:
        """Read bytes, and check them.

        Args:
            extents: What to read of each file, by ascending positions.

        Raises:
            DataLossError: A file is damaged, or ends too early. What was read is of no use then.
            NotFoundError: The source does not have it any more.
        """
        ...

    def blocks(self, file: str) -> Iterator[memoryview]:
        """Yield all bytes of a file in blocks; it raises like `read`, perhaps at the end."""
        ...


Chain: TypeAlias = Sequence[VersionPart]
"""What leads one part from one version to a later one, in its order."""


class Source(Protocol):
    """Where versions come from; what a `Reader` follows.

    A thread of the reader calls, again and again: `latest(after)`, which waits for a version; then
    `chains(version, since)` with what the reader has, and reads all that this returns. If that
    raises NotFoundError or DataLossError, it asks once more with `since=None`. No method is called
    by two threads at once, but `close`, which ends whatever waits.

    Attributes:
        name: What messages call it.
    """

    @property
    def name(self) -> str: ...

    def latest(self, after: Version | None, wait_seconds: float) -> Version | None:
        """Return the latest version that all parts have, once its number is greater.

        Args:
            after: A version; None for any.
            wait_seconds: How long to wait for one.

        Returns:
            The version; None if there was none in time.

        Raises:
            NotFoundError: There is nothing to follow yet.
            FailedPreconditionError: It is of a later release, or it is of two publishers.
            PermissionDeniedError: The reader may not.
            UnavailableError: The source cannot be reached.
            DataLossError: What it says is damaged.
        """
        ...

    def chains(self, version: Version, since: Version | None) -> tuple[Version, Sequence[Chain]]:
        """Return what leads to a version that `latest` has returned, or to a later one.

        Args:
            version: The version.
            since: The version that the caller has; None for none.

        Returns:
            The version that it leads to, and what leads there for each part.

        Raises:
            NotFoundError: The source cannot lead there from `since` any more.
        """
        ...

    def close(self) -> None:
        """End its connections."""
        ...


def read_tensors(part: VersionPart) -> dict[str, TensorEntry]:
    """Return the tensors of a part that readers have: values, and the keys of tables.

    Raises:
        DataLossError: What the part says of its tensors cannot be.
    """
    entries = part.tensors
    require_sound(part.files, entries.values(), part.name)
    return {name: entry for name, entry in entries.items() if _is_read(name, entry, entries)}


def _is_read(name: str, entry: TensorEntry, entries: Mapping[str, TensorEntry]) -> bool:
    if is_companion(name, entries):
        return name.endswith(KEYS)
    slot = SlotName.parse(name)
    return not entry.spec.slot_of and (slot is None or slot.variable not in entries)
