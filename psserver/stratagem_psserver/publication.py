"""Versions of a server: the values of one cut, which readers outside of the cluster follow.

Of each version a server keeps what the next increment needs to know: what has changed since. The
increment itself is made once, of the values of the version's cut, while training goes on, and kept
within a budget. Those values stay there until the next version, for readers that need all of them:
each row is copied before it first changes.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import torch

from stratagem_proto.errors import (
    AbortedError,
    NotFoundError,
    ResourceExhaustedError,
    StratagemError,
)
from stratagem_proto.v1.checkpoint_pb2 import SavedTensor
from stratagem_proto.v1.publication_pb2 import (
    PublishHeader,
    ReadVersionResponse,
    VersionEnd,
    VersionLink,
)
from stratagem_proto.v1.status_pb2 import Budget, PublicationStatus
from stratagem_psserver.environment import LARGE_BYTES, Clock, Compute
from stratagem_psserver.increments import (
    Increment,
    KnownVersion,
    NextIncrement,
    PublishedVersion,
    SmallCopies,
    written_values,
)
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.variables.snapshots import Snapshots
from stratagem_psserver.variables.store import VariableStore
from stratagem_psserver.waiting import Waits
from stratagem_rpc.server_log import LOG
from stratagem_storage.checkpoint.deltas import HAS_DELTAS
from stratagem_storage.checkpoint.entries import KEYS
from stratagem_storage.checkpoint.folder import part_name
from stratagem_storage.checkpoint.parts import (
    Content,
    Part,
    has_deltas,
    head_of_stream,
    require_storable,
)

PUBLICATION = "publication"
"""The subject of waits for versions."""

MAX_STREAMS = 8
"""The most parts that are sent at a time. Each that is whole can need the memory of all values."""

# Deltas take longer than whole values. Where so many increments wait to be made, a further one has
# none, so that the values that they begin with do not pile up.
_MOST_UNMADE = 2

# A reader that has taken nothing for so long no longer has the values of an older version kept.
_STALLED_SECONDS = 60.0


class Publication:
    """The versions of a server.

    A version is published by `publish`, on the event loop while nothing is being applied. It is
    listed by `links` once its increment is made, and `read` sends what is listed.

    Args:
        snapshots: The snapshots of the server.
        waits: Told of each version that is listed, under `PUBLICATION`.
        compute: Runs the work.
        clock: The time in seconds.
        settings: Those of the server.

    Attributes:
        listed: The number of the last version that is listed.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        waits: Waits,
        compute: Compute,
        clock: Clock,
        settings: ServerSettings,
    ) -> None:
        self._snapshots, self._waits = snapshots, waits
        self._compute, self._clock, self._settings = compute, clock, settings
        self._known = KnownVersion()
        # Those whose values are kept, the latest one last.
        self._versions: list[PublishedVersion] = []
        self._increments: OrderedDict[int, Increment] = OrderedDict()
        self._making: asyncio.Future[None] | None = None
        self._streams = self._unmade = 0
        self.listed = 0

    @property
    def version(self) -> int:
        """The number of the last version; 0 before the first."""
        return self._known.version

    @property
    def publisher(self) -> bytes:
        """Names the program that has published the last version; empty before the first."""
        return self._known.publisher

    def facts(self) -> Mapping[str, Any]:
        """Return what is known of the last version besides its values, as JSON."""
        known = self._known
        return {
            "version": known.version,
            "cut": known.cut.hex(),
            "published_at": known.published_at,
            "publisher": known.publisher.hex(),
            "versions": known.versions,
        }

    def restore(self, facts: Mapping[str, Any] | None) -> None:
        """Restore what `facts` returned; None of a release that published nothing.

        The values of that version are gone, so it is not listed, and since nobody has noted which
        rows have changed, the next increment has all rows of tables.
        """
        if facts:
            self._known = KnownVersion(
                facts["version"],
                bytes.fromhex(facts["cut"]),
                facts["published_at"],
                bytes.fromhex(facts["publisher"]),
                dict(facts["versions"]),
            )
            self.listed = self._known.version

    # Publishing.

    def publish(
        self,
        header: PublishHeader,
        store: VariableStore,
        tensors: Sequence[torch.Tensor],
        publisher: bytes,
    ) -> None:
        """Publish the present values; call it while nothing is being applied.

        Args:
            header: The request, whose number was checked.
            store: The variables.
            tensors: The values of the publisher, which nobody changes from now on.
            publisher: Names its program.

        Raises:
            InvalidArgumentError: A file cannot have the dtype of a variable; nothing was published.
        """
        variables = [each for each in store.variables() if not each.spec.slot_of]
        for variable in variables:
            require_storable(variable.name, variable.spec.tensor)
        before, former = self._known, self._versions[-1] if self._versions else None
        reused = former.copies if former is not None else {}
        copies = SmallCopies(before.versions, reused)
        snapshot = self._snapshots.take(store, copies.of)
        version = PublishedVersion(_link_of(header), snapshot, copies.made, touched=self._clock())
        version.add_own(header.values, tensors)
        try:
            changes = {
                each.name: each.arena.table.publish()
                for each in variables
                if each.arena is not None
            }
        except BaseException:
            self._snapshots.close(snapshot)
            for each in variables:
                if each.arena is not None:
                    each.arena.table.forget_changes()
            raise
        # From here on nothing fails.
        self._known = KnownVersion(
            header.version,
            header.cut,
            header.published_at,
            publisher,
            {each.name: each.version for each in variables if each.arena is None},
        )
        if former is not None:
            former.is_latest = False
        self._versions.append(version)
        self.tend(None)
        bases: Mapping[str, torch.Tensor] = {}
        if former is not None and HAS_DELTAS and self._unmade < _MOST_UNMADE:
            bases = former.bases_of(version)
        own = former.own if former is not None else {}
        step = NextIncrement(self._settings.task, version, before, own, changes, bases)
        version.users += 1
        self._unmade += 1
        self._making = asyncio.ensure_future(self._make(step, self._making))

    async def _make(self, step: NextIncrement, earlier: asyncio.Future[None] | None) -> None:
        """Make an increment, after those of earlier versions, and list the version."""
        if earlier is not None:
            await asyncio.wait([earlier])
        version, link = step.version, step.version.link
        try:
            if step.before.version:
                made = await self._compute.run(step.increment, step.nbytes)
                # Else they have changed meanwhile.
                if version in self._versions:
                    self._keep(made)
        except (StratagemError, RuntimeError, MemoryError) as error:
            # Readers take all of the version then.
            LOG.warning(
                "no increment", task=self._settings.label, version=link.version, why=str(error)
            )
        finally:
            self._unmade -= 1
            self._leave(version)
        self.listed = max(self.listed, link.version)
        self._waits.changed(PUBLICATION)

    def _keep(self, increment: Increment) -> None:
        budget = self._settings.publication_bytes
        if increment.link.nbytes <= budget:
            self._increments[increment.link.version] = increment
        while self._kept_nbytes > budget:
            self._increments.popitem(last=False)

    @property
    def _kept_nbytes(self) -> int:
        return sum(each.link.nbytes for each in self._increments.values())

    # Values that are kept.

    def _leave(self, version: PublishedVersion) -> None:
        version.users -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        for version in [each for each in self._versions if not (each.users or each.is_latest)]:
            self._drop(version)

    def tend(self, left: int | None) -> None:
        """Let go of values that nobody needs, or for which there is no memory; called now and then.

        Who reads them finds out when it goes on.

        Args:
            left: What the limit of variables leaves; None if there is none.
        """
        now = self._clock()
        self._close_unused()
        for version in self._versions[:-1]:
            if now - version.touched > _STALLED_SECONDS:
                self._drop(version)
        while left is not None and sum(each.snapshot.nbytes for each in self._versions) > left:
            self._drop(self._versions[0])

    def _drop(self, version: PublishedVersion) -> None:
        if version in self._versions:
            self._versions.remove(version)
            self._snapshots.close(version.snapshot)

    # Reading.

    def links(self, takes_deltas: bool) -> Sequence[VersionLink]:
        """Return what can be sent, by ascending versions; to some nothing with deltas can."""
        increments = self._increments.values()
        links = [each.link for each in increments if takes_deltas or not has_deltas(each.file)]
        latest = self._versions[-1] if self._versions else None
        if latest is not None and latest.link.version == self.listed:
            links.append(latest.link)
        return links

    def names(self, wanted: VersionLink) -> Iterable[str]:
        """Return the variables of a part; raise NotFoundError if it cannot be sent (any more)."""
        if wanted.previous:
            return _names(self._increment(wanted).file.tensors)
        return _names(self._whole(wanted).contents)

    def _increment(self, wanted: VersionLink) -> Increment:
        found = self._increments.get(wanted.version)
        if found is None or not _is_meant(found.link, wanted):
            raise self._gone(wanted)
        return found

    def _whole(self, wanted: VersionLink) -> PublishedVersion:
        latest = self._versions[-1] if self._versions else None
        if (
            latest is None
            or latest.link.version != self.listed
            or not _is_meant(latest.link, wanted)
        ):
            raise self._gone(wanted)
        return latest

    def _gone(self, wanted: VersionLink) -> NotFoundError:
        what = f"as an increment to {wanted.previous}" if wanted.previous else "as a whole"
        return NotFoundError(
            f"{self._settings.label} cannot send version {wanted.version} {what}; its latest is "
            f"{self.listed}. List its versions again, and take what it has now"
        )

    async def read(self, wanted: VersionLink) -> AsyncGenerator[ReadVersionResponse, None]:
        """Yield a part of a version as messages; the caller closes the generator.

        Raises:
            NotFoundError: It cannot be sent (any more).
            ResourceExhaustedError: So many parts are being sent as may.
            AbortedError: The reader was slow, or so much has changed that there was no room.
        """
        if self._streams >= MAX_STREAMS:
            raise ResourceExhaustedError(
                f"{self._settings.label} sends {MAX_STREAMS} parts of versions, which is the most "
                "at a time; ask again in a moment, or have readers follow a reader server"
            )
        self._streams += 1
        try:
            if wanted.previous:
                found = self._increment(wanted)
                yield head_of_stream(found.link, found.file)
                for block in found.blocks:
                    yield ReadVersionResponse(data=block)
                yield ReadVersionResponse(end=VersionEnd(blocks=found.file.blocks))
                return
            async with aclosing(self._read_whole(self._whole(wanted))) as messages:
                async for message in messages:
                    yield message
        finally:
            self._streams -= 1

    async def _read_whole(
        self, version: PublishedVersion
    ) -> AsyncGenerator[ReadVersionResponse, None]:
        version.users += 1
        try:
            part = Part(part_name(self._settings.task), version.contents)
            link = VersionLink()
            link.CopyFrom(version.link)
            link.nbytes = part.nbytes
            yield head_of_stream(link, part.file().encoded())
            runs = map(bytes, part.blocks(written_values(version.contents, version.values)))
            # The last thread that has made a block may be done with it after the reader has gone.
            while block := await self._compute.run(partial(next, runs, b""), LARGE_BYTES):
                version.touched = self._clock()
                if version not in self._versions:
                    raise AbortedError(
                        f"{self._settings.label} has the values of version {link.version} no more: "
                        "they were read too slowly, or too much has changed since. List its "
                        "versions again, and take the latest"
                    )
                yield ReadVersionResponse(data=block)
            yield ReadVersionResponse(end=VersionEnd(blocks=part.file().file.blocks))
        finally:
            self._leave(version)

    def report(self) -> PublicationStatus | None:
        """Return the message that describes it for people; None before the first version."""
        if not self._known.version:
            return None
        age = max(0.0, time.time() - self._known.published_at / 1000)
        return PublicationStatus(
            version=self._known.version,
            age_seconds=age,
            increments=len(self._increments),
            kept=Budget(used=self._kept_nbytes, limit=self._settings.publication_bytes),
            streams=self._streams,
        )


def _link_of(header: PublishHeader) -> VersionLink:
    return VersionLink(version=header.version, cut=header.cut, published_at=header.published_at)


def _is_meant(link: VersionLink, wanted: VersionLink) -> bool:
    numbers = (link.version, link.previous) == (wanted.version, wanted.previous)
    return numbers and wanted.cut in (b"", link.cut)


def _names(tensors: Iterable[SavedTensor | Content]) -> Iterator[str]:
    return (each.spec.name.removesuffix(KEYS) for each in tensors)
