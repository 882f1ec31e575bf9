"""The place where errors of the tree become statuses of gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from google.protobuf.message import DecodeError

from stratagem_proto.errors import InvalidArgumentError, StratagemError
from stratagem_proto.status import code_of, to_record, trailers
from stratagem_psserver.log import LOG

Context = grpc.aio.ServicerContext[bytes, bytes]


class Border:
    """What every call of a server passes through."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._log = LOG.bind(task=task)

    @asynccontextmanager
    async def crossing(self, context: Context, request: str) -> AsyncIterator[None]:
        """Ends the call with the status of whatever the body raises."""
        try:
            yield
        except Exception as error:
            if isinstance(error, grpc.aio.AbortError):
                raise
            await self._abort(context, request, error)

    async def _abort(self, context: Context, request: str, error: Exception) -> None:
        if isinstance(error, DecodeError):
            error = InvalidArgumentError(f"the request is no {request}")
        if isinstance(error, StratagemError):
            error.task = error.task or self._task
            self._log.info(
                "refused",
                request=request,
                error=type(error).__name__,
                why=error.message,
            )
        else:
            self._log.error("failed", request=request, exc_info=error)
        record = to_record(error)
        await context.abort(code_of(record), record.message, trailers(record))
