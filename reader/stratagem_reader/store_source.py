"""Following a folder, or a store of objects, that checkpoints are saved to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from stratagem_proto.errors import FailedPreconditionError, NotFoundError, StoreError
from stratagem_reader.source import Chain, Extent, Version
from stratagem_storage.checkpoint.entries import FileEntry, TensorEntry
from stratagem_storage.checkpoint.folder import Checkpoint, open_checkpoint
from stratagem_storage.checkpoint.policy import CheckpointPolicy, policy_of_environment
from stratagem_storage.stores.places import AnyPlace, absolute_place
from stratagem_storage.stores.store import number_of_objects

_SECONDS_BETWEEN_LOOKS = 0.2


class StoredVersion:
    """A checkpoint as a part of a version: it has the files of all servers.

    Args:
        checkpoint: The checkpoint.
        version: Which version it is.
    """

    def __init__(self, checkpoint: Checkpoint, version: Version) -> None:
        self._checkpoint, self.version = checkpoint, version
        self.name = str(checkpoint.folder)

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """As of `VersionPart`."""
        return self._checkpoint.index.files

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """As of `VersionPart`."""
        return self._checkpoint.index.tensors

    def read(self, extents: Mapping[str, Sequence[Extent]]) -> None:
        """As of `VersionPart`."""
        for name, some in extents.items():
            file = self._checkpoint.file(name)
            file.require_size()
            file.read_all(some)

    def blocks(self, file: str) -> Iterator[memoryview]:
        """As of `VersionPart`."""
        return self._checkpoint.file(file).checked()


class StoreSource:
    """A folder of checkpoints, or a store of objects, as a `Source`.

    `strategy.save(folder)` writes them, whole or with `incremental=True`; of an incremental one
    whose base the reader has, only what differs is read. A key of checkpoints in the environment
    has to have signed them.

    Args:
        place: A folder or a URL.
        policy: What is demanded of checkpoints; None for what the environment says.

    Raises:
        InvalidArgumentError: It is a URL of no kind that is known.
    """

    def __init__(self, place: AnyPlace, policy: CheckpointPolicy | None = None) -> None:
        self._place = absolute_place(place)
        self._policy = policy_of_environment() if policy is None else policy
        self._closed = threading.Event()
        self._found: tuple[Version, Checkpoint] | None = None

    @property
    def name(self) -> str:
        """As of `Source`."""
        return str(self._place)

    def latest(self, after: Version | None, wait_seconds: float) -> Version | None:
        """As of `Source`."""
        give_up_at = time.monotonic() + wait_seconds
        while True:
            version = self._look()
            if after is None or version.number > after.number:
                return version
            self._require_same(version, after)
            left = give_up_at - time.monotonic()
            if left <= 0 or self._closed.wait(min(left, _SECONDS_BETWEEN_LOOKS)):
                return None

    def _look(self) -> Version:
        try:
            checkpoint = open_checkpoint(self._place, self._policy)
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no checkpoint to follow in {self.name!r}; save to it by "
                "strategy.save(), perhaps with incremental=True"
            ) from error
        except OSError as error:
            raise StoreError(f"{self.name!r} cannot be read: {error}") from error
        known = None if self._found is None else self._found[1].index
        index = checkpoint.index
        if known is None or (known.identity, known.published) != (index.identity, index.published):
            self._found = version_of(checkpoint), checkpoint
        assert self._found is not None
        return self._found[0]

    def _require_same(self, version: Version, after: Version) -> None:
        if (version.number, version.cut) != (after.number, after.cut):
            raise FailedPreconditionError(
                f"the latest checkpoint of {self.name!r} is version {version.number}, and this "
                f"reader has version {after.number} already: two programs save there, or the clock "
                "of one was set back; have each program save to a folder of its own"
            )

    def chains(self, version: Version, since: Version | None) -> tuple[Version, Sequence[Chain]]:
        """As of `Source`."""
        if self._found is None or self._found[0] != version:
            raise NotFoundError(f"version {version.number} is not in {self.name!r} any more")
        checkpoint: Checkpoint | None = self._found[1]
        chain: list[StoredVersion] = []
        while checkpoint is not None:
            found = version_of(checkpoint)
            if since is not None and (found.number, found.cut) == (since.number, since.cut):
                break
            chain.append(StoredVersion(checkpoint, found))
            checkpoint = checkpoint.base
        else:
            if since is not None and not _is_whole(chain[-1]):
                raise NotFoundError(f"{self.name!r} does not lead on from version {since.number}")
        return version, [chain[::-1]]

    def close(self) -> None:
        """As of `Source`."""
        self._closed.set()


def _is_whole(part: StoredVersion) -> bool:
    return not any(entry.needs_base for entry in part.tensors.values())


def version_of(checkpoint: Checkpoint) -> Version:
    """Return which version a checkpoint is."""
    index, one = checkpoint.index, checkpoint.index.published
    trainings = {str(facts.get("training", "")) for facts in index.servers.values()} - {""}
    training = bytes.fromhex(min(trainings)) if len(trainings) == 1 else b""
    if one is None:
        # An earlier release wrote it, or another program.
        number = max(1, number_of_objects(checkpoint.folder.name))
        return Version(number, index.identity.encode(), time.time(), training)
    return Version(one.version, one.cut, one.milliseconds / 1000, one.training or training)
