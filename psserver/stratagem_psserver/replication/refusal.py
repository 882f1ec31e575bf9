"""Handlers that are exchanged while a server runs, and those that refuse all clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import grpc

from stratagem_proto.errors import StratagemError
from stratagem_proto.serving.rpc_boundary import Context
from stratagem_proto.sockets.server.call import Handler
from stratagem_proto.wire.status import code_of, to_record, trailers


class ExchangedHandlers(grpc.GenericRpcHandler):
    """Passes each call to the handlers that are there now."""

    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self.present = handlers

    def service(self, details: Any) -> Any:
        """Return the handler of a call; None if there is none."""
        return next(filter(None, (each.service(details) for each in self.present)), None)


class RefusingHandlers(grpc.GenericRpcHandler):
    """Answers all calls of some services with an error.

    Args:
        refused: The handlers of those services.
        error: Returns the error.
    """

    def __init__(
        self,
        refused: Sequence[grpc.GenericRpcHandler],
        error: Callable[[], StratagemError],
    ) -> None:
        self._refused = ExchangedHandlers(refused)
        self._error = error

    def service(self, details: Any) -> Any:
        """Return a handler for the calls of those services."""
        handler: Handler | None = self._refused.service(details)
        return None if handler is None else self._refusing(handler)

    def _refusing(self, handler: Any) -> Any:
        async def refuse(_: object, context: Context) -> NoReturn:
            # Not logged: clients look for the primary by asking, and repeat their requests.
            record = to_record(self._error())
            await context.abort(code_of(record), record.message, trailers(record))

        async def refuse_stream(_: object, context: Context) -> AsyncIterator[bytes]:
            await refuse(_, context)
            yield b""

        make = _MAKERS[handler.request_streaming, handler.response_streaming]
        return make(refuse_stream if handler.response_streaming else refuse)


_MAKERS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
