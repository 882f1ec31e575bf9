"""Handlers of a service's methods, as gRPC and sockets call them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from stratagem_proto.serving.rpc_boundary import Context, Rpc, RpcBoundary

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
        async def handle(data: bytes, context: Context) -> bytes:
            async with rpc.crossing(context) as crossing:
                rpc.require_sender(data)
                request = request_type.FromString(data)
                await crossing.admit(request)
                with rpc.span(request):
                    return _serialised(await method(request))

        return grpc.unary_unary_rpc_method_handler(handle)

    return make


def _serialised(response: Response) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()
