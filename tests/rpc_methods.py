"""Calls of a server's methods as gRPC makes them, past the clients that know what to send."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from stratagem_proto.v1 import parameter_server_service_pb2, worker_pb2
from stratagem_proto.v1.session_pb2 import OpenSessionRequest
from stratagem_rpc.proving import CHALLENGE, Proving


def parameter_server_method(channel: grpc.Channel, name: str) -> Any:
    services = parameter_server_service_pb2.DESCRIPTOR.services_by_name
    return _callable(channel, services["ParameterServerService"].methods_by_name[name])


def worker_method(channel: grpc.Channel, name: str) -> Any:
    services = worker_pb2.DESCRIPTOR.services_by_name
    return _callable(channel, services["WorkerService"].methods_by_name[name])


def prove(
    channel: grpc.Channel, token: str, method: str, asking: OpenSessionRequest, seconds: float
) -> None:
    """Proves in what a method is asked with that the caller knows the token."""
    if token:
        proving = Proving(token, method)
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHALLENGE)
        answer = call(proving.request, timeout=seconds)
        proving.prove(proving.verify_challenge(answer), asking)


def _callable(channel: grpc.Channel, method: MethodDescriptor) -> Any:
    sent = "stream" if method.client_streaming else "unary"
    received = "stream" if method.server_streaming else "unary"
    return getattr(channel, f"{sent}_{received}")(
        f"/{method.containing_service.full_name}/{method.name}",
        GetMessageClass(method.input_type).SerializeToString,
        GetMessageClass(method.output_type).FromString,
    )
