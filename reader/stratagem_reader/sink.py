"""Writing what a source publishes to a folder or a store, version by version."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from stratagem_proto.errors import (
    DataLossError,
    DifferentTrainingError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from stratagem_reader.source import Chain, Source, Version, VersionPart
from stratagem_reader.store_source import version_of
from stratagem_storage.checkpoint.entries import FileEntry, TensorEntry, WriteOptions, write_file
from stratagem_storage.checkpoint.folder import Checkpoint, NewCheckpoint, open_checkpoint
from stratagem_storage.checkpoint.index import Index, Published
from stratagem_storage.checkpoint.policy import policy_of_environment
from stratagem_storage.stores.places import AnyPlace, absolute_place

_MOST_INCREMENTS = 64


class Sink(Protocol):
    """Where versions of a source are written.

    Attributes:
        name: What messages call it.
    """

    @property
    def name(self) -> str: ...

    def write_next(self, wait_seconds: float) -> Sequence[Version]:
        """Write what has come since the last call; return the versions that were written."""
        ...


class StoreSink:
    """Keeps the latest versions of a source as checkpoints of a folder, for others to follow.

    The files of a checkpoint have the bytes that the source has sent, so that an increment is one
    there, too. One that is begun again goes on with the version that the folder has.

    Args:
        source: What to follow.
        place: A folder or a URL.
        keep: How many versions to keep, and what these are read beside.
        whole_every: After how many increments a version comes whole: so many files are read by
            whoever begins to follow.

    Raises:
        InvalidArgumentError: A number is not what it may be.
        DataLossError: What the folder has is damaged.
    """

    def __init__(
        self, source: Source, place: AnyPlace, *, keep: int = 3, whole_every: int = 8
    ) -> None:
        if keep < 1 or not 0 <= whole_every <= _MOST_INCREMENTS:
            raise InvalidArgumentError(
                f"keep is {keep} and whole_every {whole_every}; keep at least 1, and have at most "
                f"{_MOST_INCREMENTS} increments"
            )
        self._source, self._place = source, absolute_place(place)
        self._keep, self._whole_every = keep, whole_every
        self._policy = policy_of_environment()
        self._last: Checkpoint | None = None
        with suppress(NotFoundError):
            self._last = open_checkpoint(self._place, self._policy)

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self._place)

    def write_next(self, wait_seconds: float) -> list[Version]:
        """Write what has come since the last call; return the versions that were written.

        Args:
            wait_seconds: How long to wait for a version.

        Raises:
            StratagemError: The source cannot be followed, or the store not be written.
        """
        present = None if self._last is None else version_of(self._last)
        version = self._source.latest(present, wait_seconds)
        if version is None:
            return []
        steps = self._steps_to(version, present)
        try:
            return [self._write(parts) for parts in steps]
        except (NotFoundError, DataLossError):
            whole = _steps(self._source.chains(version, None)[1])
            if present is None or len(whole) > 1:
                raise
            return [self._write(whole[0])]

    def _steps_to(self, version: Version, present: Version | None) -> list[list[VersionPart]]:
        """Return the parts of each version to write, the first of which is whole if that is due."""
        steps: list[list[VersionPart]] = []
        if present is not None:
            require_same_training(present, version, str(self._place), self._source.name, "folder")
            with suppress(NotFoundError):
                steps = _steps(self._source.chains(version, present)[1])
        if steps and len(self._bases) + len(steps) - 1 <= self._whole_every:
            return steps
        whole = _steps(self._source.chains(version, None)[1])
        # A source that has checkpoints itself may have a whole one that is older.
        return whole if not steps or len(whole) == 1 else steps

    @property
    def _bases(self) -> Sequence[str]:
        return () if self._last is None else self._last.as_base.names

    def _write(self, parts: Sequence[VersionPart]) -> Version:
        version = parts[0].version
        new, key = NewCheckpoint(self._place), self._policy.key
        try:
            files, tensors = dict[str, FileEntry](), dict[str, TensorEntry]()
            for number, part in enumerate(parts):
                entries = part.tensors
                names = {name: name for name in part.files}
                if names.keys() & files.keys():
                    names = {name: f"{number}-{name}" for name in names}
                for name, target in names.items():
                    options = WriteOptions(has_digests=bool(key))
                    files[target] = write_file(new.folder, target, part.blocks(name), options)
                for name, entry in entries.items():
                    if name in tensors:
                        raise FailedPreconditionError(f"two parts of {part.name} have {name!r}")
                    tensors[name] = replace(entry, file=names[entry.file])
            lacks = any(entry.needs_base for entry in tensors.values())
            base = self._last.as_base if lacks and self._last is not None else None
            published = Published(
                version.number, version.cut, int(version.published * 1000), version.training
            )
            index = replace(Index.of_parts([], base=base), files=files, tensors=tensors)
            index = replace(index, base=base, published=published)
            new.commit(index, self._keep, key)
        except BaseException:
            new.abandon()
            raise
        self._last = open_checkpoint(self._place, self._policy)
        return version


def require_same_training(
    present: Version, version: Version, place: str, source: str, what: str
) -> None:
    """Check that a version is of what a place has versions of, as far as both say it.

    Raises:
        DifferentTrainingError: It is not.
    """
    if present.training and version.training not in (b"", present.training):
        raise DifferentTrainingError(
            f"{place!r} has versions of another training than {source!r}; write to another {what}"
        )


def _steps(chains: Sequence[Chain]) -> list[list[VersionPart]]:
    """Return the parts of each version on the way.

    Raises:
        NotFoundError: The parts do not come by the same versions.
    """
    ways = {tuple(part.version.number for part in chain) for chain in chains}
    if len(ways) != 1:
        raise NotFoundError("the parts of a version do not come by the same versions; try again")
    return [list(parts) for parts in zip(*chains, strict=True)]
