"""Versions of a server that follows others: what it has come to, for those who follow it.

To them it is a cluster of one server, whose part has all tensors. An increment is what has led the
server itself from one version to the next; one that came whole is sent whole.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import grpc
import torch

from stratagem_proto.errors import (
    NotFoundError,
    ResourceExhaustedError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.v1 import publication_pb2 as pb
from stratagem_proto.v1.access_pb2 import ACTION_READ
from stratagem_proto.v1.checkpoint_pb2 import SavedPart, StoredRows
from stratagem_proto.v1.session_pb2 import Task
from stratagem_proto.v1.status_pb2 import PublicationStatus
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_reader.changes import Change
from stratagem_reader.reader import Follower
from stratagem_reader.replica import Prepared
from stratagem_reader.source import Version
from stratagem_rpc.server_call import ServerCall
from stratagem_rpc.server_log import LOG
from stratagem_rpc.serving.access import Introduced
from stratagem_rpc.serving.policy import Permissions
from stratagem_rpc.serving.rpc_boundary import Handler, Make, Rpc, unary_method
from stratagem_storage.checkpoint.deltas import Delta, composed
from stratagem_storage.checkpoint.entries import KEYS, TensorEntry
from stratagem_storage.checkpoint.folder import part_name
from stratagem_storage.checkpoint.parts import Content, Part, has_deltas, head_of_stream

MAX_STREAMS = 8
"""The most parts that are sent at a time."""

_LONGEST_WAIT_SECONDS = 60.0

# Increments are made while somebody has asked for versions within this time.
_FOLLOWED_SECONDS = 120.0

# A copy is made while nobody can be given another version.
_COPYING_SECONDS = 60.0


@dataclass(frozen=True)
class _File:
    """A file that can be sent.

    Attributes:
        link: What it leads from and to.
        file: Its description.
        blocks: Its bytes, in pieces.
    """

    link: pb.VersionLink
    file: SavedPart
    blocks: Sequence[bytes]


class _Increment(NamedTuple):
    """An increment, and the same without rows of tables."""

    full: _File
    thin: _File

    @property
    def nbytes(self) -> int:
        return self.full.link.nbytes + self.thin.link.nbytes


@dataclass
class _Whole:
    """A copy of all values of one version, for those who need them all.

    Attributes:
        version: The version.
        contents: The descriptions of the tensors.
        values: The tensors.
        users: How many are being sent it.
    """

    version: Version
    contents: Sequence[Content]
    values: Sequence[torch.Tensor]
    users: int = 0


class Republication:
    """The PublicationService of a reader server.

    `taken` is called by the thread that follows; the rest runs on the event loop.

    Args:
        settings: The settings of the server.
    """

    def __init__(self, settings: RepublicationSettings) -> None:
        self._settings = settings
        self._increments: OrderedDict[int, _Increment] = OrderedDict()
        self._last: Version | None = None
        self._asked = -_FOLLOWED_SECONDS
        self._changing = threading.Lock()
        self._whole: _Whole | None = None
        self._threads = ThreadPoolExecutor(2, "stratagem-versions")
        self._streams = 0
        self._arrivals: set[asyncio.Future[None]] = set()
        self._permissions: Permissions | None = None
        self._is_draining = False

    def begin(self) -> None:
        """Get ready for calls; on the event loop."""
        self._copying = asyncio.Lock()

    def follow(self, follower: Follower) -> None:
        """Send what a follower has."""
        self._follower = follower

    def methods(self, permissions: Permissions | None) -> dict[str, Make]:
        """Return what makes the handlers of the service; nothing is published here."""
        self._permissions = permissions
        return {
            "ListVersions": unary_method(pb.ListVersionsRequest, self._list),
            "ReadVersion": self._read_handler,
        }

    async def drain(self) -> None:
        """Let nobody wait for versions any more."""
        self._is_draining = True
        self.arrived()
        self._threads.shutdown(wait=False)

    # What there is.

    def taken(self, prepared: Prepared) -> None:
        """Keep what has led to a version, if somebody may follow; in the thread that follows."""
        version, before = prepared.version, self._last
        self._last = version
        if before is None or prepared.is_whole or not self._is_followed:
            with self._changing:
                self._increments.clear()
            return
        try:
            increment = _increment(prepared, before)
        except StratagemError as error:
            LOG.warning("no increment", version=version.number, why=str(error))
            with self._changing:
                self._increments.clear()
            return
        with self._changing:
            self._increments[version.number] = increment
            while self._kept > self._settings.publication_bytes:
                self._increments.popitem(last=False)

    @property
    def _is_followed(self) -> bool:
        return time.monotonic() - self._asked < _FOLLOWED_SECONDS

    @property
    def _kept(self) -> int:
        return sum(each.nbytes for each in self._increments.values())

    def arrived(self) -> None:
        """Answer those who wait for a version."""
        whole, present = self._whole, self._follower.replica.version
        if whole is not None and not whole.users and whole.version != present:
            self._whole = None
        for arrival in self._arrivals:
            if not arrival.done():
                arrival.set_result(None)

    def report(self, status: PublicationStatus) -> None:
        """Describe it for people."""
        version = self._follower.replica.version
        if version is not None:
            status.version, status.age_seconds = version.number, self._follower.age
        with self._changing:
            status.increments, status.kept.used = len(self._increments), self._kept
        status.kept.limit, status.streams = self._settings.publication_bytes, self._streams

    # Listing.

    async def _list(self, request: pb.ListVersionsRequest) -> pb.ListVersionsResponse:
        self._asked = time.monotonic()
        await self._await_version(request.after, min(request.wait_seconds, _LONGEST_WAIT_SECONDS))
        version = self._follower.replica.version
        answer = pb.ListVersionsResponse(
            servers=1,
            task=Task(job=self._settings.job, index=0),
            now=int(time.time() * 1000),
        )
        if version is None or not self._follower.replica.is_intact:
            return answer
        answer.training, answer.latest = version.training, version.number
        with self._changing:
            links = [
                each.full.link
                for each in self._increments.values()
                if request.takes_deltas or not has_deltas(each.full.file)
            ]
        answer.links.extend(link for link in links if link.version <= version.number)
        whole = pb.VersionLink(
            version=version.number,
            cut=version.cut,
            published_at=int(version.published * 1000),
            nbytes=self._follower.replica.nbytes,
        )
        answer.links.append(whole)
        return answer

    async def _await_version(self, after: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + seconds
        while self._follower.replica.number <= after and not self._is_draining:
            left = give_up_at - loop.time()
            if left <= 0:
                return
            arrival = loop.create_future()
            self._arrivals.add(arrival)
            try:
                await asyncio.wait([arrival], timeout=left)
            finally:
                self._arrivals.discard(arrival)

    # Reading.

    def _read_handler(self, rpc: Rpc) -> Handler:
        async def handle(data: bytes, call: ServerCall) -> None:
            async with rpc.crossing(call) as crossing:
                rpc.require_sender(data)
                request = pb.ReadVersionRequest.FromString(data)
                await crossing.admit(request)
                self._require_readable(request)
                async with aclosing(self._read(request)) as messages:
                    async for message in messages:
                        await call.write(message.SerializeToString())

        return grpc.unary_stream_rpc_method_handler(handle)

    def _require_readable(self, request: pb.ReadVersionRequest) -> None:
        if self._permissions is not None:
            caller, replica = Introduced.from_handshake(request.asking), self._follower.replica
            self._permissions.require_all("ReadVersion", ACTION_READ, caller, replica.names())

    async def _read(
        self, wanted: pb.ReadVersionRequest
    ) -> AsyncGenerator[pb.ReadVersionResponse, None]:
        if self._streams >= MAX_STREAMS:
            raise ResourceExhaustedError(
                f"{self._settings.label} sends {MAX_STREAMS} parts of versions, which is the most "
                "at a time; ask again in a moment, or have readers follow another server"
            )
        self._streams += 1
        try:
            if wanted.previous:
                found = self._found(wanted)
                yield head_of_stream(found.link, found.file)
                for block in found.blocks:
                    yield pb.ReadVersionResponse(data=block)
                yield pb.ReadVersionResponse(end=pb.VersionEnd(blocks=found.file.blocks))
                return
            async with aclosing(self._read_whole(wanted)) as messages:
                async for message in messages:
                    yield message
        finally:
            self._streams -= 1

    def _found(self, wanted: pb.ReadVersionRequest) -> _File:
        with self._changing:
            found = self._increments.get(wanted.version)
        if found is None or not _is_meant(found.full.link, wanted):
            raise self._gone(wanted)
        return found.thin if wanted.without_rows else found.full

    def _gone(self, wanted: pb.ReadVersionRequest) -> NotFoundError:
        what = f"as an increment to {wanted.previous}" if wanted.previous else "as a whole"
        return NotFoundError(
            f"{self._settings.label} cannot send version {wanted.version} {what}; its latest is "
            f"{self._follower.replica.number}. List its versions again, and take what it has now"
        )

    async def _read_whole(
        self, wanted: pb.ReadVersionRequest
    ) -> AsyncGenerator[pb.ReadVersionResponse, None]:
        loop = asyncio.get_running_loop()
        whole = await self._copied(wanted)
        whole.users += 1
        try:
            contents, values = whole.contents, whole.values
            part = Part(part_name(0), contents)
            link = _link(whole.version, None)
            link.nbytes = part.nbytes
            yield head_of_stream(link, part.file().encoded())
            blocks = map(bytes, part.blocks(values))
            while block := await loop.run_in_executor(self._threads, partial(next, blocks, b"")):
                yield pb.ReadVersionResponse(data=block)
            yield pb.ReadVersionResponse(end=pb.VersionEnd(blocks=part.file().file.blocks))
        finally:
            whole.users -= 1
            if not whole.users and whole.version != self._follower.replica.version:
                self._whole = None if self._whole is whole else self._whole

    async def _copied(self, wanted: pb.ReadVersionRequest) -> _Whole:
        """Return a copy of the present version, which is the one that is wanted."""
        async with self._copying:
            present = self._follower.replica.version
            if present is None or present.number != wanted.version:
                raise self._gone(wanted)
            if wanted.cut not in (b"", present.cut):
                raise self._gone(wanted)
            loop, whole = asyncio.get_running_loop(), self._whole
            if wanted.without_rows:
                # It is small, and so made for each.
                return self._require_wanted(
                    await loop.run_in_executor(self._threads, self._without_rows), wanted
                )
            if whole is not None and whole.version == present:
                return whole
            if whole is not None and whole.users:
                raise UnavailableError(
                    f"{self._settings.label} still sends version {whole.version.number} whole, and "
                    f"has no room for a copy of {present.number} besides; ask again in a moment"
                )
            self._whole = await loop.run_in_executor(self._threads, self._copy)
            return self._require_wanted(self._whole, wanted)

    def _require_wanted(self, whole: _Whole, wanted: pb.ReadVersionRequest) -> _Whole:
        if whole.version.number != wanted.version:
            raise self._gone(wanted)
        return whole

    def _copy(self) -> _Whole:
        pins, replica = self._follower.pins, self._follower.replica
        pin = pins.await_hold(lambda: replica.number, _COPYING_SECONDS)
        try:
            version, tensors = replica.version, replica.tensors_by_name()
            assert version is not None
            contents = [_content(entry) for entry in replica.entries.values()]
            values = [tensors[name].clone() for name in replica.entries]
            pin.require_valid()
            return _Whole(version, contents, values)
        finally:
            pins.release(pin)

    def _without_rows(self) -> _Whole:
        """Return a copy of what is no table; tables are described with no rows."""
        pins, replica = self._follower.pins, self._follower.replica
        pin = pins.await_hold(lambda: replica.number, _COPYING_SECONDS)
        try:
            version = replica.version
            assert version is not None
            contents, values, tensors = [], [], replica.tensors_by_name()
            for name, entry in replica.entries.items():
                has_rows, value = _has_rows(entry), tensors[name]
                contents.append(_content(_emptied(entry) if has_rows else entry))
                values.append(value[:0] if has_rows else value.clone())
            pin.require_valid()
            return _Whole(version, contents, values)
        finally:
            pins.release(pin)


class RepublicationSettings(Protocol):
    """What it has to know of the settings of its server."""

    @property
    def job(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def publication_bytes(self) -> int: ...


def _increment(prepared: Prepared, before: Version) -> _Increment:
    """Make what leads from the version before to one that was just put in place."""
    changes = [_with_one_delta(change) for change in prepared.changes.values()]
    thin = [_thinned(change) if _has_rows(change.entry) else change for change in changes]
    link = _link(prepared.version, before)
    return _Increment(_file(link, changes), _file(link, thin))


def _with_one_delta(change: Change) -> Change:
    delta = composed(change.deltas, change.entry.tensor)
    return replace(change, deltas=() if delta is None else (delta,))


def _file(link: pb.VersionLink, changes: Sequence[Change]) -> _File:
    contents, values = list[Content](), list[torch.Tensor]()
    for change in changes:
        delta = change.deltas[0] if change.deltas else None
        contents.append(_content(change.entry, change.numbers, delta))
        values += [] if change.numbers is None else [change.numbers]
        values.append(change.values if delta is None else delta.data)
    part = Part(part_name(0), contents)
    blocks = [bytes(block) for block in part.blocks(values)]
    own = pb.VersionLink()
    own.CopyFrom(link)
    own.nbytes = part.nbytes
    return _File(own, part.file().encoded(), blocks)


def _has_rows(entry: TensorEntry) -> bool:
    return entry.rows is not None or entry.name.endswith(KEYS)


def _thinned(change: Change) -> Change:
    return Change(_emptied(change.entry), change.values[:0], torch.empty(0, dtype=torch.int64))


def _content(
    entry: TensorEntry, numbers: torch.Tensor | None = None, delta: Delta | None = None
) -> Content:
    return Content(entry.spec, entry.version, entry.rows, numbers, delta)


def _emptied(entry: TensorEntry) -> TensorEntry:
    """Return the description of a table's tensor without rows."""
    spec = VariableSpec()
    spec.CopyFrom(entry.spec)
    if entry.rows is None:
        spec.tensor.shape[0] = 0
        return replace(entry, spec=spec)
    return replace(entry, rows=StoredRows(count=0))


def _link(version: Version, before: Version | None) -> pb.VersionLink:
    link = pb.VersionLink(
        version=version.number, cut=version.cut, published_at=int(version.published * 1000)
    )
    if before is not None:
        link.previous, link.previous_cut = before.number, before.cut
    return link


def _is_meant(link: pb.VersionLink, wanted: pb.ReadVersionRequest) -> bool:
    numbers = (link.version, link.previous) == (wanted.version, wanted.previous)
    return numbers and wanted.cut in (b"", link.cut)
