"""The entrance of calls by gRPC, where they wait for their first message.

A call takes memory before its first message says whose it is, and so does that message, of up to 36
MiB, until it is whole; gRPC waits for it for ever. So the server waits itself: not for long, and
for so many calls only, of strangers for fewer than of the cluster. Whoever has shown over a
connection to belong to the cluster is no stranger there any more.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc

from stratagem_proto.errors import DeadlineExceededError, ResourceExhaustedError, StratagemError
from stratagem_proto.wire.status import code_of, to_record, trailers
from stratagem_rpc.server_call import CallMessages, ServerCall
from stratagem_rpc.serving.callers import on_admission

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import ShownCertificate

# A client whose place was taken repeats its request then.
_RETRY_SECONDS = 0.1


@dataclass(frozen=True)
class Limits:
    """How long calls wait for their first message.

    Attributes:
        most: How many may wait for longer than `grace`.
        seconds: How long a call may wait.
        grace: How long it waits in any case. A message that came with its call is looked at when
            it is its turn, as is the answer to somebody else.
    """

    most: int
    seconds: float
    grace: float = 0.0


class UnbegunCalls:
    """The calls of a server that wait for their first message; used on its event loop.

    Of too many, those that have waited longest give their places to others.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # When each began to wait, in that order.
        self._since: dict[asyncio.Task[Any], float] = {}
        self._ended: dict[asyncio.Task[Any], StratagemError] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    async def first(self, messages: AsyncIterator[bytes]) -> bytes:
        """Return the first message of the present task's call.

        Raises:
            StopAsyncIteration: The call has none.
            ResourceExhaustedError: Others have taken its place.
            DeadlineExceededError: It did not come in time.
        """
        task = self._add()
        try:
            message = await anext(messages)
            if task in self._ended:
                # It came together with the end, which is told here.
                await asyncio.sleep(0)
            return message
        except asyncio.CancelledError:
            if (error := self._ended.get(task)) is None:
                raise
            _uncancel(task)
            raise error from None
        finally:
            self._since.pop(task, None)
            self._ended.pop(task, None)

    def _add(self) -> asyncio.Task[Any]:
        task = asyncio.current_task()
        assert task is not None
        self._since[task] = asyncio.get_running_loop().time()
        if self._timer is None or len(self) == self._limits.most + 1:
            self._await_oldest()
        return task

    @property
    def _end_of_oldest(self) -> float:
        limits = self._limits
        allowed = limits.grace if len(self) > limits.most else limits.seconds
        return next(iter(self._since.values())) + allowed

    def _await_oldest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._end_of_oldest, self._due) if self._since else None

    def _due(self) -> None:
        # Messages that are here already are handed over in this turn of the loop, and taken in the
        # next one.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._end_late)

    def _end_late(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._since and self._end_of_oldest <= now:
            self._end_oldest()
        self._await_oldest()

    def _end_oldest(self) -> None:
        error = self._crowded() if len(self) > self._limits.most else self._late()
        oldest = next(iter(self._since))
        del self._since[oldest]
        self._ended[oldest] = error
        oldest.cancel()

    def _crowded(self) -> ResourceExhaustedError:
        error = ResourceExhaustedError(
            f"more than {self._limits.most} calls of this kind wait for their first message, and "
            "this one has waited longest; send it with the call"
        )
        error.retry_seconds = _RETRY_SECONDS
        return error

    def _late(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"the first message of the call did not come in {self._limits.seconds:g} s; send the "
            "request again"
        )


def _uncancel(task: asyncio.Task[Any]) -> None:
    # Before Python 3.11 a task does not remember that it was cancelled.
    if uncancel := getattr(task, "uncancel", None):
        uncancel()


# A message may have 36 MiB, and clients give up a call that comes more slowly than 1 MB/s.
_SECONDS = 60.0

# Thousands of workers may send a large request each at the same moment. A call takes 22 KiB.
MEMBERS = Limits(4_096, _SECONDS)

# Their messages take 288 MiB at most, and what comes within the grace. What a stranger has to send,
# a handshake, comes together with its call.
STRANGERS = Limits(8, _SECONDS, grace=0.25)

# What a host of IPv6 is commonly given to choose its addresses from.
_PREFIX = 64

# A connection that is forgotten is known again by its next call.
_MOST_KNOWN = 16_384

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class Entrance:
    """Where the calls of a server wait for their first message; used on its event loop.

    Attributes:
        members: Calls of connections over which somebody has shown to belong to the cluster.
        strangers: All others.
    """

    def __init__(self, members: Limits = MEMBERS, strangers: Limits = STRANGERS) -> None:
        self.members, self.strangers = UnbegunCalls(members), UnbegunCalls(strangers)
        # By the addresses of their other ends, in the order in which they became known.
        self._known: dict[str, None] = {}

    def unbegun(self, context: Any) -> UnbegunCalls:
        """Return where a call waits, by its context."""
        connection: str = context.peer()
        if connection in self._known:
            return self.members
        on_admission(partial(self._know, connection))
        return self.strangers

    def _know(self, connection: str) -> None:
        self._known[connection] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def handler(self, served: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """Return the handler of the same calls, which wait here for their first message."""
        return _Waiting(served, self)


class _Waiting(grpc.GenericRpcHandler):
    """Handles calls as others do, once they have begun."""

    def __init__(self, served: grpc.GenericRpcHandler, entrance: Entrance) -> None:
        self._served, self._entrance = served, entrance

    def service(self, details: grpc.HandlerCallDetails) -> Handler | None:
        found: Any = self._served.service(details)
        if found is None:
            return None
        form = _of_many if found.response_streaming else _of_one
        return form(found, self._entrance)


class GrpcCall(ServerCall):
    """A call by gRPC.

    Args:
        context: The call as gRPC knows it.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    @property
    def address(self) -> str:
        return host_of(self._context.peer())

    @property
    def certificate(self) -> ShownCertificate:
        from stratagem_rpc.certificates.folder import shown_certificate

        (pem,) = self._context.auth_context()["x509_pem_cert"]
        return shown_certificate(pem)

    async def write(self, message: bytes, /) -> None:
        await self._context.write(message)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: tuple[tuple[str, str | bytes], ...] = (),
    ) -> NoReturn:
        await self._context.abort(code, details, trailing_metadata)
        raise AssertionError("the call was aborted")


def host_of(peer: str) -> str:
    """Return the host of a peer as gRPC names it, for instance "ipv4:10.0.0.1:2222"."""
    scheme, _, address = peer.partition(":")
    if scheme != "ipv6":
        return address.rpartition(":")[0]
    host = address.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/{_PREFIX}", strict=False))
    except ValueError:
        return host


class GrpcMessages(CallMessages):
    """The messages of a call by gRPC, of which the first is waited for elsewhere."""

    def __init__(self, messages: AsyncIterator[bytes], unbegun: UnbegunCalls) -> None:
        self._call, self._unbegun = messages, unbegun
        # Made when somebody asks: who refuses a call does not look at its messages.
        self._messages: AsyncIterator[bytes] | None = None

    async def __anext__(self) -> bytes:
        if self._messages is not None:
            return await anext(self._messages)
        self._messages = aiter(self._call)
        return await self._unbegun.first(self._messages)


async def _only(messages: AsyncIterator[bytes], context: Any, entrance: Entrance) -> bytes:
    """Return the request of a call that has one message."""
    try:
        return await entrance.unbegun(context).first(aiter(messages))
    except StopAsyncIteration:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the call has no request")
    except StratagemError as error:
        record = to_record(error)
        await context.abort(code_of(record), record.message, trailers(record))
    raise AssertionError("the call was aborted")


def _of_one(found: Any, entrance: Entrance) -> Handler:
    """Return the handler of a call that has one answer."""

    async def answer_stream(messages: AsyncIterator[bytes], context: Any) -> Any:
        first = GrpcMessages(messages, entrance.unbegun(context))
        return await found.stream_unary(first, GrpcCall(context))

    async def answer(messages: AsyncIterator[bytes], context: Any) -> Any:
        request = await _only(messages, context, entrance)
        return await found.unary_unary(request, GrpcCall(context))

    handle = answer_stream if found.request_streaming else answer
    return grpc.stream_unary_rpc_method_handler(handle)


def _of_many(found: Any, entrance: Entrance) -> Handler:
    """Return the handler of a call that has a stream of answers, which it yields or writes."""
    served = found.stream_stream if found.request_streaming else found.unary_stream

    async def request(messages: AsyncIterator[bytes], context: Any) -> Any:
        if found.request_streaming:
            return GrpcMessages(messages, entrance.unbegun(context))
        return await _only(messages, context, entrance)

    async def yielded(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async with aclosing(served(await request(messages, context), GrpcCall(context))) as answers:
            async for answer in answers:
                yield answer

    async def written(messages: AsyncIterator[bytes], context: Any) -> None:
        await served(await request(messages, context), GrpcCall(context))

    handle: Any = yielded if inspect.isasyncgenfunction(served) else written
    return grpc.stream_stream_rpc_method_handler(handle)
