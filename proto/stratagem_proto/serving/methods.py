"""Handlers of a service's methods, as gRPC and sockets call them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from stratagem_proto.serving.rpc_boundary import Context, RpcBoundary

Request = TypeVar("Request", bound=Message)
Response = Message | bytes
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


def unary_handler(
    boundary: RpcBoundary,
    request_type: type[Request],
    method: Callable[[Request], Awaitable[Response]],
) -> Handler:
    """Return the handler of a method that takes a message and returns one.

    Args:
        boundary: The boundary at which calls are counted and errors become statuses.
        request_type: The class of the request.
        method: Returns the answer, as a message or encoded.
    """

    async def handle(data: bytes, context: Context) -> bytes:
        async with boundary.crossing(context, request_type.__name__):
            request = request_type.FromString(data)
            with boundary.span(request):
                return _serialised(await method(request))

    return grpc.unary_unary_rpc_method_handler(handle)


def _serialised(response: Response) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()
