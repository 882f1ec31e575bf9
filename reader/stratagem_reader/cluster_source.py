"""Following the servers of a cluster, or one server that follows them itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import NamedTuple, TypeVar

import grpc

from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    NotPrimaryError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
)
from stratagem_proto.protocol import spoken
from stratagem_proto.replica_addresses import replica_addresses
from stratagem_proto.secret_files import TOKEN_FILE
from stratagem_proto.v1 import publication_pb2 as pb
from stratagem_proto.v1.session_pb2 import ROLE_READER, OpenSessionRequest
from stratagem_proto.wire.status import translated
from stratagem_reader.source import Chain, Extent, Version
from stratagem_rpc.channel import ANY_SERVER, Deadlines, LastingChannel
from stratagem_rpc.proving import CHALLENGE, Proving
from stratagem_storage.checkpoint.deltas import HAS_DELTAS
from stratagem_storage.checkpoint.entries import Account, FileEntry, TensorEntry, TensorFile
from stratagem_storage.checkpoint.parts import FORMAT

_SERVICE = pb.DESCRIPTOR.services_by_name["PublicationService"].full_name
_CALL_SECONDS = 10.0
_MOST_ATTEMPTS = 30

# A server makes a whole part from values that it keeps for that, so that an increment is better
# where it takes a little more.
_WHOLE_BYTES = 1 << 20

_Answer = TypeVar("_Answer")


class _Server:
    """A server, at whichever of the addresses of its replicas it is.

    Args:
        label: What messages call it.
        addresses: Their "host:port".
        token: The secret of the cluster, or "".
        without_rows: Whether tables come without their rows, which are looked up there.
    """

    def __init__(
        self, label: str, addresses: Sequence[str], token: str, without_rows: bool = False
    ) -> None:
        self.label, self._token, self._deadlines = label, token, Deadlines()
        self._without_rows = without_rows
        # The one that answered last comes first.
        self._channels = {one: LastingChannel(one, ANY_SERVER) for one in addresses}

    def list_versions(self, after: int, wait_seconds: float) -> pb.ListVersionsResponse:
        """Return what the server can send, once that is more, or after so many seconds."""

        def ask(channel: grpc.Channel) -> pb.ListVersionsResponse:
            asking = self._asking(channel, "ListVersions")
            request = pb.ListVersionsRequest(
                asking=asking,
                after=after,
                wait_seconds=max(0.0, wait_seconds),
                takes_deltas=HAS_DELTAS,
            )
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
            call = channel.unary_unary(f"/{_SERVICE}/ListVersions")
            timeout = _CALL_SECONDS + wait_seconds
            return pb.ListVersionsResponse.FromString(
                call(request.SerializeToString(), timeout=timeout)
            )

        return self._at_primary("ListVersions", ask)

    def read(self, link: pb.VersionLink) -> Iterator[pb.ReadVersionResponse]:
        """Yield the messages of a part."""

        def begin(channel: grpc.Channel) -> Iterator[bytes]:
            request = pb.ReadVersionRequest(
                asking=self._asking(channel, "ReadVersion"),
                version=link.version,
                previous=link.previous,
                cut=link.cut,
                without_rows=self._without_rows,
            )
            call: grpc.UnaryStreamMultiCallable[bytes, bytes]
            call = channel.unary_stream(f"/{_SERVICE}/ReadVersion")
            timeout = self._deadlines.attempt(link.nbytes)
            stream = iter(call(request.SerializeToString(), timeout=timeout))
            # Only with the first message the server has not refused it.
            return chain([next(stream, b"")], stream)

        messages = self._at_primary("ReadVersion", begin)
        with translated(self.label, "ReadVersion"):
            for message in messages:
                yield pb.ReadVersionResponse.FromString(message)

    def _asking(self, channel: grpc.Channel, method: str) -> OpenSessionRequest:
        asking = OpenSessionRequest(role=ROLE_READER, **spoken())
        if self._token:
            proving = Proving(self._token, method)
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHALLENGE)
            answer = call(proving.request, timeout=_CALL_SECONDS)
            proving.prove(proving.verify_challenge(answer), asking)
        return asking

    def _at_primary(self, method: str, call: Callable[[grpc.Channel], _Answer]) -> _Answer:
        """Call the replica that answered last, then the others, and whom they name as primary."""
        errors: list[StratagemError] = []
        addresses = [*self._channels]
        for address in addresses:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = LastingChannel(address, ANY_SERVER)
            try:
                answer = self._called(channel, method, call)
            except (NotPrimaryError, UnavailableError) as error:
                errors.append(error)
                named = error.primary if isinstance(error, NotPrimaryError) else ""
                if named and named not in addresses:
                    addresses.append(named)
            else:
                self._channels = {address: channel, **self._channels}
                return answer
        told = [error for error in errors if not isinstance(error, NotPrimaryError)]
        raise (told or errors)[0]

    def _called(
        self, channel: LastingChannel, method: str, call: Callable[[grpc.Channel], _Answer]
    ) -> _Answer:
        try:
            with translated(self.label, method):
                return call(channel.get())
        except UnimplementedError as error:
            raise UnimplementedError(
                f"{self.label} publishes no versions: it is a server of another kind, or of an "
                "earlier release; give the addresses of parameter servers, or of a reader server"
            ) from error
        except StratagemError:
            # Some of them are ValueErrors, too.
            raise
        except ValueError as error:
            raise UnavailableError(f"the connection to {self.label} is closed") from error

    def close(self) -> None:
        for channel in [*self._channels.values()]:
            channel.close()


class _Path(NamedTuple):
    """Links that lead somewhere.

    Attributes:
        nbytes: Of all of their files.
        before: What leads to the last one; None for nothing.
        link: The last one; None for no link at all.
    """

    nbytes: int
    before: _Path | None = None
    link: pb.VersionLink | None = None

    def links(self) -> list[pb.VersionLink]:
        found: list[pb.VersionLink] = []
        path: _Path | None = self
        while path is not None and path.link is not None:
            found.append(path.link)
            path = path.before
        return found[::-1]


_Moment = tuple[int, bytes]
"""The number and the cut of a version."""


def _paths(links: Sequence[pb.VersionLink], since: Version | None) -> dict[_Moment, _Path]:
    """Return what leads to each version with the fewest bytes, by its number and cut."""
    found: dict[_Moment, _Path] = {}
    if since is not None:
        found[since.number, since.cut] = _Path(0)
    for link in sorted(links, key=lambda each: (each.version, each.previous)):
        before: _Path | None = None
        if link.previous:
            before = found.get((link.previous, link.previous_cut))
            if before is None:
                continue
        path = _Path(link.nbytes + (before.nbytes if before else _WHOLE_BYTES), before, link)
        known = found.get((link.version, link.cut))
        if known is None or path.nbytes < known.nbytes:
            found[link.version, link.cut] = path
    return found


class WirePart:
    """A part of a version as a server sends it: its files are one, and a stream.

    Args:
        server: The server.
        link: What it is asked for.
        version: A later version of the same source, or the one that it leads to.
    """

    def __init__(self, server: _Server, link: pb.VersionLink, version: Version) -> None:
        self._server, self._link = server, link
        published = version.published
        if link.version != version.number:
            published = min(published, link.published_at / 1000)
        self.version = Version(link.version, link.cut, published, version.training)
        self.name = f"version {link.version} of {server.label}"
        self._blocks: tuple[int, ...] | None = None
        self._messages: Iterator[pb.ReadVersionResponse] = iter(())
        # `cached_property` has one lock for all instances before Python 3.12, so that parts of a
        # server that does not answer would keep parts of others waiting.
        self._begun: pb.VersionPart | None = None

    @property
    def _part(self) -> pb.VersionPart:
        if self._begun is None:
            self._messages = self._server.read(self._link)
            self._begun = self._checked(next(self._messages, pb.ReadVersionResponse()))
        return self._begun

    def _checked(self, first: pb.ReadVersionResponse) -> pb.VersionPart:
        if not first.HasField("part"):
            raise DataLossError(f"{self.name} does not begin with its description")
        part = first.part
        if part.format > FORMAT:
            raise FailedPreconditionError(
                f"{self.name} has format {part.format}; this release of stratagem reads formats up "
                f"to {FORMAT}; install a later one"
            )
        asked, sent = self._link, part.link
        if (sent.version, sent.previous, sent.cut) != (asked.version, asked.previous, asked.cut):
            raise NotFoundError(f"{self.server_label} has sent another version than {self.name}")
        return part

    def require_begun(self) -> None:
        """Begin the stream, if it has not begun.

        Raises:
            NotFoundError: The server does not have the part any more.
        """
        assert self._part

    @property
    def server_label(self) -> str:
        """What messages call the server."""
        return self._server.label

    @property
    def is_whole(self) -> bool:
        """Whether it needs no earlier version."""
        return not self._link.previous

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """As of `VersionPart`."""
        file = self._part.file
        return {file.name: FileEntry(file.nbytes, self._blocks)}

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """As of `VersionPart`."""
        entries = TensorFile.decoded(self._part.file).tensors
        found = {entry.name: entry for entry in entries}
        if len(found) < len(entries):
            raise DataLossError(f"{self.name} has two tensors of one name")
        return found

    def read(self, extents: Mapping[str, Sequence[Extent]]) -> None:
        """As of `VersionPart`."""
        name = self._part.file.name
        wanted = iter(extents.get(name, ()))
        begin, target = next(wanted, (0, memoryview(b"")))
        position = 0
        for block in self.blocks(name):
            end = position + len(block)
            while len(target) and begin < end:
                low, high = max(begin, position), min(begin + len(target), end)
                target[low - begin : high - begin] = block[low - position : high - position]
                if begin + len(target) > end:
                    break
                begin, target = next(wanted, (0, memoryview(b"")))
            position = end
        if len(target):
            raise DataLossError(f"{self.name} ends at byte {position}, before its data")

    def blocks(self, file: str) -> Iterator[memoryview]:
        """As of `VersionPart`."""
        account, nbytes = Account(), self._part.file.nbytes
        ends: list[pb.VersionEnd] = []

        def data() -> Iterator[memoryview]:
            left = nbytes
            for message in self._messages:
                if message.HasField("end"):
                    ends.append(message.end)
                    return
                left -= len(message.data)
                if left < 0:
                    raise DataLossError(f"{self.name} has more than its {nbytes} bytes")
                yield memoryview(message.data)

        yield from account.counted(data())
        entry = account.entry()
        self._blocks = entry.blocks
        if not ends or entry.nbytes != nbytes or [*ends[0].blocks] != [*(entry.blocks or ())]:
            raise DataLossError(f"{self.name} is damaged, or its stream has ended too early")


class ClusterSource:
    """The parameter servers of a cluster as a `Source`; or one server that follows them.

    Nothing of the reader is in the state of a server. It asks by the role of a reader, which may
    change nothing.

    Args:
        addresses: The "host:port" of each server, in the order of their tasks; those of replicas of
            a task with commas between them.
        token: The secret of the cluster; None for that of the environment.
        without_rows: Whether tables come without their rows, which only a server can that follows
            others.

    Raises:
        InvalidArgumentError: There are no addresses.
    """

    def __init__(
        self, addresses: Sequence[str], token: str | None = None, without_rows: bool = False
    ) -> None:
        if isinstance(addresses, str) or not addresses:
            raise InvalidArgumentError(
                f"addresses are {addresses!r}; pass the 'host:port' of each server in a list"
            )
        secret = TOKEN_FILE.from_environment() if token is None else token
        self._servers = [
            _Server(
                f"server {task} at {each}",
                replica_addresses(f"task {task}", each),
                secret,
                without_rows,
            )
            for task, each in enumerate(addresses)
        ]
        self._listed: list[pb.ListVersionsResponse] = []
        self._threads = ThreadPoolExecutor(len(self._servers), "stratagem-reader")
        self.name = ", ".join(addresses)

    def latest(self, after: Version | None, wait_seconds: float) -> Version | None:
        """As of `Source`."""
        number, give_up_at = after.number if after else 0, time.monotonic() + wait_seconds
        answers: dict[int, pb.ListVersionsResponse] = {}
        asked = dict.fromkeys(range(len(self._servers)), number)
        while True:
            left = max(0.0, give_up_at - time.monotonic())
            answers |= self._list_all(asked, left)
            self._require_one_cluster(answers)
            version = self._complete(list(answers.values()), after)
            if version is not None:
                self._listed = list(answers.values())
                return version
            if left <= 0.0:
                return None
            newest = max(one.latest for one in answers.values())
            behind = {task: one.latest for task, one in answers.items() if one.latest < newest}
            # Where all have the latest, and it is not one version, only a later one can be.
            asked = behind or {task: one.latest for task, one in answers.items()}

    def _list_all(
        self, asked: Mapping[int, int], wait_seconds: float
    ) -> dict[int, pb.ListVersionsResponse]:
        futures = {
            task: self._threads.submit(self._servers[task].list_versions, after, wait_seconds)
            for task, after in asked.items()
        }
        return {task: future.result() for task, future in futures.items()}

    def _require_one_cluster(self, answers: Mapping[int, pb.ListVersionsResponse]) -> None:
        count = len(self._servers)
        trainings = {one.training for one in answers.values()} - {b""}
        if len(trainings) > 1:
            raise FailedPreconditionError(
                f"the servers {self.name} are not of one training; pass those of one cluster"
            )
        for task, one in answers.items():
            if one.servers not in (0, count):
                raise FailedPreconditionError(
                    f"{self._servers[task].label} has a part of {one.servers} servers, and the "
                    f"reader was given {count}; pass the addresses of all"
                )
        latest = {(one.latest, _cut_of(one)) for one in answers.values() if one.latest}
        numbers = [version for version, _ in latest]
        if len({*numbers}) < len(numbers):
            raise FailedPreconditionError(
                f"servers of {self.name} have different moments as version {max(numbers)}: two "
                "programs publish at once; end one of them"
            )

    def _complete(
        self, answers: Sequence[pb.ListVersionsResponse], after: Version | None
    ) -> Version | None:
        reached = [_paths(one.links, after) for one in answers]
        return _latest_common(reached, answers[0], after.number if after else 0)

    def chains(self, version: Version, since: Version | None) -> tuple[Version, Sequence[Chain]]:
        """As of `Source`."""
        if since is None:
            return self._from_nothing()
        chains: list[Chain] = []
        for server, listed in zip(self._servers, self._listed, strict=True):
            path = _paths(listed.links, since).get((version.number, version.cut))
            if path is None:
                raise NotFoundError(f"{server.label} cannot send version {version.number} any more")
            chains.append([WirePart(server, link, version) for link in path.links()])
        return version, chains

    def _from_nothing(self) -> tuple[Version, Sequence[Chain]]:
        """Return what leads to a version that all servers have, from a whole one of each.

        Each keeps the values of its latest version only, and not all publish at one moment. So the
        whole ones need not be of one version: increments lead from each of them to a common one.
        """
        wholes = [_begun(server) for server in self._servers]
        after, give_up_at = 0, time.monotonic() + _CALL_SECONDS
        while True:
            left = max(0.0, give_up_at - time.monotonic())
            answers = self._list_all(dict.fromkeys(range(len(wholes)), after), min(left, 1.0))
            paths = [
                _paths([link for link in answers[task].links if link.previous], part.version)
                for task, part in enumerate(wholes)
            ]
            version = _latest_common(paths, answers[0], 0)
            if version is not None:
                break
            if not left:
                raise NotFoundError(f"the servers {self.name} have had no common version for now")
            after = max(one.latest for one in answers.values())
        chains: list[Chain] = []
        for server, whole, found in zip(self._servers, wholes, paths, strict=True):
            links = found[version.number, version.cut].links()
            chains.append([whole, *(WirePart(server, link, version) for link in links)])
        return version, chains

    def close(self) -> None:
        """As of `Source`."""
        for server in self._servers:
            with suppress(ValueError):
                server.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _latest_common(
    reached: Sequence[Mapping[_Moment, _Path]], listed: pb.ListVersionsResponse, number: int
) -> Version | None:
    """Return the latest version that can be reached for all parts, if it is after a number."""
    common = set.intersection(*(set(paths) for paths in reached))
    found = max((one for one in common if one[0] > number), default=None)
    if found is None:
        return None
    # That of a version without a link is not told, and it is none to wait for.
    published = [one.published_at for one in listed.links if one.version == found[0]]
    age = max(0, listed.now - published[0]) / 1000 if published else 0.0
    return Version(found[0], found[1], time.time() - age, listed.training)


def _begun(server: _Server) -> WirePart:
    """Return a whole part whose stream has begun, so that the server keeps it until it has ended.

    Raises:
        NotFoundError: The server has none, or each was gone before it could be asked for.
    """
    for _ in range(_MOST_ATTEMPTS):
        listed = server.list_versions(0, 0.0)
        wholes = [link for link in listed.links if not link.previous]
        if not wholes:
            break
        link = max(wholes, key=lambda each: each.version)
        age = max(0, listed.now - link.published_at) / 1000
        version = Version(link.version, link.cut, time.time() - age, listed.training)
        part = WirePart(server, link, version)
        with suppress(NotFoundError):
            part.require_begun()
            return part
    raise NotFoundError(
        f"{server.label} has no whole version to begin with; publish one, and not again before it "
        "can be read"
    )


def _cut_of(listed: pb.ListVersionsResponse) -> bytes:
    return next((one.cut for one in listed.links if one.version == listed.latest), b"")
