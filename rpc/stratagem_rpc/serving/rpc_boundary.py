"""The boundary of a server's RPCs: who may call, what is counted, and errors as statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from grpc.aio import AbortError

from stratagem_proto.errors import (
    InvalidArgumentError,
    SessionLostError,
    StratagemError,
    UnauthenticatedError,
)
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.status import code_of, to_record, trailers
from stratagem_rpc import tracing
from stratagem_rpc.server_call import ServerCall
from stratagem_rpc.server_log import LOG
from stratagem_rpc.serving.access import (
    Access,
    Caller,
    Handshake,
    Introduced,
    facts_of,
    first_message,
    handshake_finder,
    leading_session_finder,
    session_finder,
)
from stratagem_rpc.serving.callers import enter_call, note_admission, require_certified
from stratagem_rpc.serving.figures import Calls, Figures
from stratagem_rpc.serving.policy import Permissions
from stratagem_rpc.serving.settings import ServingSettings

if TYPE_CHECKING:
    from stratagem_rpc.serving.handshake import Handshakes


# A status is sent in headers, which gRPC limits to 8 KiB in all. Characters outside of ASCII take
# three times their bytes there.
_MESSAGE_BYTES = 1600
_DETAIL_BYTES = 520


# Larger requests take milliseconds to decode, in which nobody else is answered.
_LARGE_BYTES = 1 << 20

# A handshake may tell of the device filters of all tasks.
_HANDSHAKE_BYTES = 4 << 20

Sessions: TypeAlias = Callable[[bytes], Caller | None]
"""Returns who has opened the session of an id; None if none is known."""


def no_sessions(session_id: bytes) -> Caller | None:
    """Return that the session is not known: of servers whose calls name none."""
    return None


class RpcBoundary:
    """The boundary that every call of a server crosses.

    It counts calls, refuses callers whose role may not call the RPC or whom the policy does not let
    do what they ask for, encodes errors, and lets the log tell who has called.

    Args:
        handshakes: Those of the server, which know its settings.
        figures: The figures of its calls.
        sessions: Its sessions.
        permissions: What its policy lets callers do; None if it has none.
    """

    def __init__(
        self,
        handshakes: Handshakes,
        figures: Figures,
        sessions: Sessions = no_sessions,
        permissions: Permissions | None = None,
    ) -> None:
        self.handshakes, self.figures, self.sessions = handshakes, figures, sessions
        self.permissions = permissions
        self.task = handshakes.settings.label
        self.log = LOG.bind(task=self.task)

    def rpc(self, method: MethodDescriptor) -> Rpc:
        """Return an RPC whose calls cross this.

        Raises:
            InternalError: The contract does not say who may call it, or what policies decide.
        """
        return Rpc(self, method)


class Rpc:
    """One RPC of a server, from its boundary to its handler.

    Args:
        boundary: The boundary.
        method: The RPC.

    Attributes:
        access: Who may call it.
        task: The server, for spans.
        prove: Checks that whoever sends a request belongs to the cluster; None where requests name
            a session, or where anybody may call.
        caller: Returns who has sent a request, or its header; None if its session is not known.
    """

    def __init__(self, boundary: RpcBoundary, method: MethodDescriptor) -> None:
        self.access, self._boundary = Access(method), boundary
        self.task = boundary.task
        self._name, first = method.name, first_message(method)
        self._message = first.name
        self._session_of: Callable[[bytes | memoryview], bytes] | None = None
        self.prove: Callable[[Message], Awaitable[None]] | None = None
        self.caller: Callable[[Message], Caller | None] = _unknown
        if handshake := handshake_finder(first):
            self.caller = _by_handshake(handshake)
            self.prove = partial(_prove, boundary.handshakes, self._name, handshake)
        elif not self.access.for_anyone:
            self.caller = _by_session(first, boundary.sessions)
            self._session_of = leading_session_finder(first)
            settings = boundary.handshakes.settings
            if settings.tls is not None:
                self.caller = _certified(settings, self.caller)

    def require_sender(self, data: bytes | memoryview) -> None:
        """Check that a request, or its header, may be decoded: a large one by a session alone.

        Raises:
            SessionLostError: It is large, and names no session that is known.
            InvalidArgumentError: It is a handshake, and larger than any.
        """
        nbytes = len(data)
        if nbytes <= _LARGE_BYTES:
            return
        if self._session_of is None:
            if nbytes > _HANDSHAKE_BYTES:
                raise InvalidArgumentError(
                    f"{self._name} has {nbytes} bytes, and a caller without a session may send "
                    f"{_HANDSHAKE_BYTES}"
                )
        elif self._boundary.sessions(self._session_of(data)) is None:
            raise SessionLostError(
                f"{self._name} has {nbytes} bytes and comes of no session that is known, so it is "
                f"not read; open a session first, or send at most {_LARGE_BYTES} bytes"
            )

    def crossing(self, call: ServerCall) -> Crossing:
        """Return a context that ends a call with the status of an error that its block raises."""
        return Crossing(self, self._boundary.figures.calls(self._message), call)

    def require(self, caller: Caller, request: Message) -> None:
        """Check that a caller may do what a request, or its header, is for.

        Raises:
            PermissionDeniedError: Its role may not call the RPC, or the policy is against it.
        """
        if caller.role not in self.access.roles:
            self.access.require(caller)
        permissions, needs = self._boundary.permissions, self.access.needs
        if permissions is not None and needs:
            permissions.require(self._name, needs, caller, request)

    def log_call(self, event: str, caller: Caller | None, request: Message | None) -> None:
        """Let the log tell of a call that was not refused, of an RPC whose calls it tells of."""
        facts = facts_of(caller, request, self.access.logged)
        self._boundary.log.info(event, rpc=self._name, **facts)

    def recorded(
        self, error: Exception, caller: Caller | None, request: Message | None
    ) -> RecordedStatus:
        """Log the error of a failed call, and return its status."""
        if isinstance(error, DecodeError):
            error = InvalidArgumentError(f"the request is not a {self._message}")
        # A stranger may call itself anything.
        proven = None if isinstance(error, UnauthenticatedError) else caller
        facts = facts_of(proven, request, self.access.logged)
        log = self._boundary.log.bind(rpc=self._name, **facts)
        if isinstance(error, StratagemError):
            error.task = error.task or self._boundary.task
            why = _shortened(error.message, _MESSAGE_BYTES)
            stranger = proven is None
            log.info("refused", error=type(error).__name__, why=why, stranger=stranger)
        else:
            log.error("failed", exc_info=error)
        return _fitting(to_record(error))


def _unknown(request: Message) -> None:
    return None


async def _prove(
    handshakes: Handshakes, method: str, handshake: Handshake, request: Message
) -> None:
    await handshakes.check(handshake(request), method)
    note_admission()


def _by_session(first: Descriptor, sessions: Sessions) -> Callable[[Message], Caller | None]:
    session_id = session_finder(first)
    return lambda request: sessions(session_id(request))


def _certified(
    settings: ServingSettings, find: Callable[[Message], Caller | None]
) -> Callable[[Message], Caller | None]:
    """Return what finds the caller of a session, and checks that the call is the caller's."""

    def find_certified(request: Message) -> Caller | None:
        caller = find(request)
        if caller is not None:
            require_certified(caller.role, caller.task, settings)
        return caller

    return find_certified


def _by_handshake(handshake: Handshake) -> Callable[[Message], Caller]:
    return lambda request: Introduced.from_handshake(handshake(request))


class Crossing:
    """The crossing of one call; see `Rpc.crossing`."""

    __slots__ = ("_began", "_call", "_caller", "_calls", "_request", "_rpc")

    def __init__(self, rpc: Rpc, calls: Calls, call: ServerCall) -> None:
        self._rpc, self._calls, self._call = rpc, calls, call
        self._caller: Caller | None = None
        self._request: Message | None = None

    async def admit(self, request: Message) -> None:
        """Let a call in by its request, or the header of it, if its caller may do that.

        A session that is not known is for the handler to refuse, whose answer says what to do.

        Raises:
            PermissionDeniedError: The caller may not.
            StratagemError: It has a handshake that proves nothing.
        """
        rpc = self._rpc
        self._request = request
        if rpc.prove is not None:
            await rpc.prove(request)
        self._caller = caller = rpc.caller(request)
        if caller is not None:
            rpc.require(caller, request)

    async def __aenter__(self) -> Crossing:
        enter_call(self._call)
        self._began = self._calls.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        rpc, code = self._rpc, "OK" if error is None else "CANCELLED"
        try:
            if error is None:
                if rpc.access.logged:
                    rpc.log_call("carried out", self._caller, self._request)
            elif isinstance(error, asyncio.CancelledError):
                # What has begun is carried out to its end, although nobody waits for it.
                if rpc.access.logged:
                    rpc.log_call("broken off", self._caller, self._request)
            elif isinstance(error, Exception) and not isinstance(error, AbortError):
                record = rpc.recorded(error, self._caller, self._request)
                code = code_of(record).name
                await self._call.abort(code_of(record), record.message, trailers(record))
        finally:
            self._calls.end(self._began, code)


def _fitting(record: RecordedStatus) -> RecordedStatus:
    """Shorten the texts of a status, which may contain long names that a client has sent."""
    record.message = _shortened(record.message, _MESSAGE_BYTES)
    record.detail.variable = _shortened(record.detail.variable, _DETAIL_BYTES)
    record.detail.location = _shortened(record.detail.location, _DETAIL_BYTES)
    return record


def _shortened(text: str, nbytes: int) -> str:
    data = text.encode()
    if len(data) <= nbytes:
        return text
    return data[:nbytes].decode(errors="ignore") + "..."


Request = TypeVar("Request", bound=Message)
Response = Message | bytes
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Make: TypeAlias = Callable[[Rpc], Handler]
"""Makes the handler of an RPC."""


def handler_of(
    boundary: RpcBoundary, service: ServiceDescriptor, methods: Mapping[str, Make]
) -> grpc.GenericRpcHandler:
    """Return the handler of a service, whose calls cross the boundary of its server.

    Args:
        boundary: The boundary.
        service: The service.
        methods: Makes the handler of each RPC, by its name.
    """
    handlers = {
        name: make(boundary.rpc(service.methods_by_name[name])) for name, make in methods.items()
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def unary_method(
    request_type: type[Request], method: Callable[[Request], Awaitable[Response]]
) -> Make:
    """Return what makes the handler of a method that takes a message and returns one.

    Args:
        request_type: The class of the request.
        method: Returns the answer, as a message or encoded.
    """

    def make(rpc: Rpc) -> Handler:
        async def handle(data: bytes, call: ServerCall) -> bytes:
            async with rpc.crossing(call) as crossing:
                rpc.require_sender(data)
                request = request_type.FromString(data)
                await crossing.admit(request)
                with tracing.answering(request, rpc.task):
                    response = await method(request)
                    return response if isinstance(response, bytes) else response.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(handle)

    return make
