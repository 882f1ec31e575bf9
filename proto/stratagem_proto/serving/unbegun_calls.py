"""Calls by gRPC of which nothing has come but their path, as strangers can begin them.

A call takes memory before its first message says whose it is, and gRPC waits for that message for
ever. So the server waits itself: not for long, and for so many calls only.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc

from stratagem_proto.errors import DeadlineExceededError, ResourceExhaustedError, StratagemError
from stratagem_proto.wire.status import code_of, to_record, trailers

# Thousands of workers may send a large request each at the same moment. A call takes 22 KiB.
MOST = 4_096

# A message may have 36 MiB, and clients give up a call that comes more slowly than 1 MB/s.
SECONDS = 60.0

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class UnbegunCalls:
    """The calls of a server that wait for their first message; used on its event loop.

    Args:
        most: How many may wait. One more takes the place of the one that waits longest.
        seconds: How long a call may wait.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
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
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._since[task] = loop.time()
        if len(self._since) > self._most:
            self._end_oldest(
                ResourceExhaustedError(
                    f"{self._most} calls of this server wait for their first message, and this one "
                    "has waited longest; send it with the call"
                )
            )
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._end_late)
        return task

    def _end_late(self) -> None:
        loop = asyncio.get_running_loop()
        while self._since:
            left = next(iter(self._since.values())) + self._seconds - loop.time()
            if left > 0:
                self._timer = loop.call_later(left, self._end_late)
                return
            self._end_oldest(
                DeadlineExceededError(
                    f"the first message of the call did not come in {self._seconds:g} s; send the "
                    "request again"
                )
            )
        self._timer = None

    def _end_oldest(self, error: StratagemError) -> None:
        oldest = next(iter(self._since))
        del self._since[oldest]
        self._ended[oldest] = error
        oldest.cancel()

    def handler(self, served: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """Return the handler of the same calls, which wait here for their first message."""
        return _Waiting(served, self)


def _uncancel(task: asyncio.Task[Any]) -> None:
    # Before Python 3.11 a task does not remember that it was cancelled.
    if uncancel := getattr(task, "uncancel", None):
        uncancel()


class _Waiting(grpc.GenericRpcHandler):
    """Handles calls as others do, once they have begun."""

    def __init__(self, served: grpc.GenericRpcHandler, unbegun: UnbegunCalls) -> None:
        self._served, self._unbegun = served, unbegun

    def service(self, details: grpc.HandlerCallDetails) -> Handler | None:
        found: Any = self._served.service(details)
        if found is None:
            return None
        form = _of_many if found.response_streaming else _of_one
        return form(found, self._unbegun)


class _Messages:
    """The messages of a call, of which the first is waited for elsewhere."""

    def __init__(self, messages: AsyncIterator[bytes], unbegun: UnbegunCalls) -> None:
        self._call, self._unbegun = messages, unbegun
        # Made when somebody asks: who refuses a call does not look at its messages.
        self._messages: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> bytes:
        if self._messages is not None:
            return await anext(self._messages)
        self._messages = aiter(self._call)
        return await self._unbegun.first(self._messages)


async def _only(messages: AsyncIterator[bytes], context: Any, unbegun: UnbegunCalls) -> bytes:
    """Return the request of a call that has one message."""
    try:
        return await unbegun.first(aiter(messages))
    except StopAsyncIteration:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the call has no request")
    except StratagemError as error:
        record = to_record(error)
        await context.abort(code_of(record), record.message, trailers(record))
    raise AssertionError("the call was aborted")


def _of_one(found: Any, unbegun: UnbegunCalls) -> Handler:
    """Return the handler of a call that has one answer."""

    async def answer_stream(messages: AsyncIterator[bytes], context: Any) -> Any:
        return await found.stream_unary(_Messages(messages, unbegun), context)

    async def answer(messages: AsyncIterator[bytes], context: Any) -> Any:
        return await found.unary_unary(await _only(messages, context, unbegun), context)

    handle = answer_stream if found.request_streaming else answer
    return grpc.stream_unary_rpc_method_handler(handle)


def _of_many(found: Any, unbegun: UnbegunCalls) -> Handler:
    """Return the handler of a call that has a stream of answers, which it yields or writes."""
    served = found.stream_stream if found.request_streaming else found.unary_stream

    async def request(messages: AsyncIterator[bytes], context: Any) -> Any:
        if found.request_streaming:
            return _Messages(messages, unbegun)
        return await _only(messages, context, unbegun)

    async def yielded(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async with aclosing(served(await request(messages, context), context)) as answers:
            async for answer in answers:
                yield answer

    async def written(messages: AsyncIterator[bytes], context: Any) -> None:
        await served(await request(messages, context), context)

    handle: Any = yielded if inspect.isasyncgenfunction(served) else written
    return grpc.stream_stream_rpc_method_handler(handle)
