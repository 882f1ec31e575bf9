"""Looking rows up at a reader server."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import grpc
import torch

from stratagem_proto.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    MalformedStreamError,
    SessionLostError,
    StratagemError,
    UnimplementedError,
    VersionExpiredError,
)
from stratagem_proto.proofs import credential_of
from stratagem_proto.protocol import SESSION_ID_BYTES, check_token, spoken
from stratagem_proto.secret_files import TOKEN_FILE
from stratagem_proto.v1 import lookup_pb2
from stratagem_proto.v1.lookup_pb2 import (
    LookupHeader,
    LookupRequest,
    OpenLookupsRequest,
    OpenLookupsResponse,
    TableKeys,
)
from stratagem_proto.v1.session_pb2 import ROLE_READER, FrameSockets, OpenSessionRequest
from stratagem_proto.wire.frames import Assembler, decode_frame, whole_tensors
from stratagem_proto.wire.segment import Segment, rounded_size
from stratagem_proto.wire.status import from_rpc_error, is_transient
from stratagem_proto.wire.tensors import as_bytes
from stratagem_reader.tables import ReplicaTable
from stratagem_rpc.channel import GRPC, LastingChannel, check_transport, transport_from_environment
from stratagem_rpc.proving import CHALLENGE, Proving
from stratagem_rpc.serving.settings import check_server_address
from stratagem_rpc.sockets.client import Endpoint, SocketLink, broken, endpoints, require_ok
from stratagem_rpc.sockets.frames import FrameKind

_SERVICE = lookup_pb2.DESCRIPTOR.services_by_name["LookupService"].full_name
_OPEN, _LOOKUP = f"/{_SERVICE}/OpenLookups", f"/{_SERVICE}/Lookup"
_LOOKUP_PATH = _LOOKUP.encode()

# Connections that are kept while there is nothing to ask.
_MOST_LINKS = 8

# Answers with more bytes come by shared memory from then on, where there is any.
_SHARED_BYTES = 64 << 10

# Keys whose rows fit into one answer, unless rows are large; fewer are tried if they do not.
_MOST_KEYS = 1 << 18
_LEAST_KEYS = 256

_LETTING_GO_SECONDS = 1.0

# Servers behind one address come to a version at about the same time.
_BEHIND_SECONDS = 5.0

_AGREEMENTS = 10

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 0.5


class Wanted(NamedTuple):
    """Keys to look up.

    Attributes:
        table: The name of the table.
        keys: Keys, or numbers of rows: an int64 vector.
        missing: What keys without a row get, in the bytes of the table's dtype: an element or a
            row; b"" for what training would begin with.
    """

    table: str
    keys: torch.Tensor
    missing: bytes = b""


class Answer(NamedTuple):
    """What a server has answered.

    Attributes:
        version: The version that all rows are of.
        age: How many seconds ago it was published, by the server's clock.
        held: For how many seconds the server keeps it.
        rows: The rows of each table, in tensors of their own.
    """

    version: int
    age: float
    held: float
    rows: list[torch.Tensor]


class _Session(NamedTuple):
    """A session with a server.

    Attributes:
        shown: What requests show.
        endpoint: Where its calls go; None for gRPC.
        links: Connections that nobody uses.
    """

    shown: bytes
    endpoint: Endpoint | None
    links: deque[SocketLink]


class LookupClient:
    """Looks up at one reader server, or at any of several behind one address. Thread-safe.

    What is asked is asked again while a server cannot be reached, until the time is over.

    Args:
        address: The "host:port".
        token: The secret of the cluster; None for that of the file that STRATAGEM_TOKEN_FILE names.
        timeout: The most seconds for one answer.
        transport: As of STRATAGEM_TRANSPORT, which is the default.

    Raises:
        InvalidArgumentError: The address or the transport is none.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        timeout: float = 30.0,
        transport: str | None = None,
    ) -> None:
        check_server_address(address)
        self.address, self._timeout = address, timeout
        self._token = TOKEN_FILE.from_environment() if token is None else token
        check_token(self._token)
        self._transport = transport or transport_from_environment()
        check_transport(self._transport)
        self._channel = LastingChannel(address)
        self._session: _Session | None = None
        self._opening = threading.Lock()
        self._closed = False

    def look_up(
        self,
        tables: Sequence[Wanted],
        *,
        version: int = 0,
        min_version: int = 0,
        wait: float = 0.0,
        hold: float = 0.0,
    ) -> Answer:
        """Return rows of one version, or which version there is.

        Args:
            tables: What to look up.
            version: The version that they have to be of; 0 for the present one.
            min_version: The least version; 0 for any.
            wait: How many seconds to wait for that.
            hold: For how many seconds the server is to keep the version, from now on; 0 leaves that
                as it was.

        Raises:
            VersionExpiredError: The server has another version than `version`.
            StaleVersionError: It has none so late, or its own is older than it may answer of.
            VariableNotFoundError: The version has no such table.
            RowIndexError: There is no such row.
            PermissionDeniedError: This program may not.
            UnavailableError: The server cannot be reached, or has no version yet.
            DeadlineExceededError: It has not answered in time.
        """
        each = [TableKeys(table=t, keys=bytes(as_bytes(k)), missing=m) for t, k, m in tables]
        request = LookupRequest(
            tables=each,
            version=version,
            min_version=min_version,
            wait_seconds=wait,
            hold_seconds=hold,
        )
        if sum(len(one.keys) for one in tables) > _MOST_KEYS:
            return self._in_pieces(tables, request, _MOST_KEYS)
        deadline = time.monotonic() + self._timeout + wait
        try:
            return self._ask(request, deadline)
        except InvalidArgumentError as error:
            most = max(len(one.keys) for one in tables) if tables else 0
            if type(error) is not InvalidArgumentError or most <= _LEAST_KEYS:
                raise
            if "an answer may have" not in error.message:
                raise
            return self._in_pieces(tables, request, most // 4)

    def let_go(self) -> None:
        """End the hold of a version, if the server can be reached; it ends by itself soon."""
        session = self._session
        if session is None or self._closed:
            return
        request = LookupRequest(session_id=session.shown, hold_seconds=-1.0).SerializeToString()
        with suppress(grpc.RpcError, StratagemError):
            self._asked(session, request, time.monotonic() + _LETTING_GO_SECONDS)

    def _in_pieces(self, tables: Sequence[Wanted], first: LookupRequest, most: int) -> Answer:
        """Look up in several requests, all of one version; again if that goes meanwhile."""
        give_up_at = time.monotonic() + self._timeout
        while True:
            try:
                return self._pieces(tables, first, most)
            except VersionExpiredError:
                if first.version or time.monotonic() > give_up_at:
                    raise

    def _pieces(self, tables: Sequence[Wanted], first: LookupRequest, most: int) -> Answer:
        rows: list[torch.Tensor] = []
        answer, version = Answer(0, 0.0, 0.0, []), first.version
        for table, keys, missing in tables:
            found = []
            for some in keys.split(most) if len(keys) else [keys]:
                answer = self.look_up(
                    [Wanted(table, some, missing)],
                    version=version,
                    min_version=first.min_version,
                    wait=first.wait_seconds,
                    hold=first.hold_seconds,
                )
                version = answer.version
                found += answer.rows
            rows.append(torch.cat(found))
        return answer._replace(rows=rows)

    # One request.

    def _ask(self, request: LookupRequest, deadline: float) -> Answer:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                session = self._session or self._open(deadline)
                request.session_id = session.shown
                return self._asked(session, request.SerializeToString(), deadline)
            except grpc.RpcError as error:
                failure = from_rpc_error(error, self.address, "Lookup")
                left = deadline - time.monotonic()
                if isinstance(failure, UnimplementedError):
                    raise UnimplementedError(
                        f"{self.address} answers no lookups: it is no reader server, or of an "
                        "earlier release; give the address of one, which `stratagem serve` starts"
                    ) from error
                if isinstance(failure, SessionLostError):
                    self._forget(session)
                elif not is_transient(error):
                    raise failure from None
                if self._closed or left <= pause:
                    raise self._unanswered(failure) from None
                time.sleep(0.0 if isinstance(failure, SessionLostError) else pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _unanswered(self, failure: StratagemError) -> StratagemError:
        if isinstance(failure, SessionLostError):
            return DeadlineExceededError(
                f"{self.address} opened sessions and lost them, for {self._timeout:g} s: several "
                "servers may be behind it that take turns; let a connection stay with one of them"
            )
        return failure

    def _asked(self, session: _Session, request: bytes, deadline: float) -> Answer:
        if session.endpoint is None:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.get().unary_unary(
                _LOOKUP
            )
            return _decoded(call(request, timeout=_left(deadline)), None)
        try:
            link = session.links.pop()
        except IndexError:
            link = self._connect(session)
        is_usable = False
        try:
            link.allow(_left(deadline))
            link.send(FrameKind.CALL, request, True, _LOOKUP_PATH)
            frame = link.receive(deadline)
            if frame.kind == FrameKind.STATUS:
                is_usable = True
                require_ok(frame)
            answer = _decoded(frame.message, link.segment)
            if len(frame.message) > _SHARED_BYTES and session.endpoint.can_share:
                link.share(rounded_size(2 * len(frame.message)))
            is_usable = not link.stream.is_worn
            return answer
        except (OSError, MalformedStreamError) as error:
            # Where one connection broke, others will have.
            self._forget(session)
            raise broken(error) from error
        finally:
            if is_usable and len(session.links) < _MOST_LINKS and not self._closed:
                session.links.append(link)
            else:
                link.close()

    def _connect(self, session: _Session) -> SocketLink:
        assert session.endpoint is not None
        try:
            return SocketLink(session.endpoint)
        except (OSError, MalformedStreamError) as error:
            self._forget(session)
            raise broken(error) from error

    # Sessions.

    def _open(self, deadline: float) -> _Session:
        with self._opening:
            if self._session is None:
                self._session = self._opened(deadline)
            return self._session

    def _opened(self, deadline: float) -> _Session:
        session_id = os.urandom(SESSION_ID_BYTES)
        asking = OpenSessionRequest(session_id=session_id, role=ROLE_READER, **spoken())
        channel = self._channel.get()
        if self._token:
            proving = Proving(self._token, "OpenLookups")
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHALLENGE)
            challenge = ask(proving.request, timeout=_left(deadline))
            proving.prove(proving.verify_challenge(challenge), asking)
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_OPEN)
        request = OpenLookupsRequest(asking=asking).SerializeToString()
        answer = OpenLookupsResponse.FromString(call(request, timeout=_left(deadline)))
        shown = session_id + credential_of(session_id, self._token)
        return self._by_best(answer.session.frame_sockets, shown)

    def _by_best(self, told: FrameSockets, shown: bytes) -> _Session:
        """Return a session whose calls go by the best transport that both ends have."""
        if self._transport != GRPC:
            for endpoint in endpoints(told, self.address, self._transport):
                try:
                    return _Session(shown, endpoint, deque([SocketLink(endpoint)]))
                except (OSError, MalformedStreamError):
                    continue
        return _Session(shown, None, deque())

    def _forget(self, session: _Session) -> None:
        with self._opening:
            if self._session is session:
                self._session = None
        while session.links:
            session.links.pop().close()

    @property
    def way(self) -> str:
        """The transport of lookups; "" before the first one."""
        session = self._session
        if session is None:
            return ""
        return session.endpoint.way if session.endpoint is not None else GRPC

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        if (session := self._session) is not None:
            self._forget(session)
        self._channel.close()


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


def _decoded(data: bytes | memoryview, segment: Segment | None) -> Answer:
    """Return an answer; raise MalformedStreamError if it is none."""
    frame = decode_frame(data, LookupHeader, segment)
    header = frame.header
    if header is None:
        raise MalformedStreamError("the answer to a lookup has no header")
    tensors = None if segment is not None else whole_tensors(header.tensors, frame.chunks)
    if tensors is None:
        assembler = Assembler(header.tensors)
        assembler.add(frame.chunks)
        tensors = assembler.finish()
    return Answer(header.version, header.age_ms / 1000, header.held_seconds, tensors)


class ServedRows:
    """The rows of tables at a reader server. Thread-safe.

    A reader that pins a version has the server keep it meanwhile, as far as the server grants that.

    Args:
        client: Asks the server.
    """

    def __init__(self, client: LookupClient) -> None:
        self._client = client
        self._pins = 0
        # Of several servers behind one address, none is to answer of an older version.
        self._seen = 0
        self._changing = threading.Lock()

    def agree(self, pinned: int, seconds: float, wait_for: Callable[[int], object]) -> int:
        """Have the server keep a version for a pin that is to begin; `release` follows.

        Args:
            pinned: The version that is here.
            seconds: For how long.
            wait_for: Waits until a version is here.

        Returns:
            The version that is kept.
        """
        with self._changing:
            self._pins += 1
        try:
            for _ in range(_AGREEMENTS):
                answer = self._client.look_up(
                    [], min_version=pinned, wait=_BEHIND_SECONDS, hold=seconds
                )
                if answer.version <= pinned:
                    break
                wait_for(answer.version)
                pinned = answer.version
            return pinned
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let the server go on, if no other pin holds it."""
        with self._changing:
            self._pins -= 1
            is_last = not self._pins
        if is_last:
            self._client.let_go()

    def look_up(
        self,
        table: ReplicaTable,
        keys: torch.Tensor,
        default: torch.Tensor | float | None,
        version: int | None,
        lease: float,
    ) -> torch.Tensor:
        """Return rows.

        Args:
            table: Their table, as it is here: without rows.
            keys: An int64 vector.
            default: As of `Follower.lookup`.
            version: The version that they have to be of; None for the present one.
            lease: For how many seconds more that is pinned.

        Raises:
            VersionExpiredError: The server has gone on from that version.
        """
        missing = b"" if default is None else bytes(as_bytes(table.default(default)))
        wanted = [Wanted(table.name, keys, missing)]
        if version is None:
            answer = self._client.look_up(wanted, min_version=self._seen, wait=_BEHIND_SECONDS)
        else:
            answer = self._client.look_up(wanted, version=version, hold=lease)
        with self._changing:
            self._seen = max(self._seen, answer.version)
        return answer.rows[0]

    def close(self) -> None:
        """End its connections."""
        self._client.close()
