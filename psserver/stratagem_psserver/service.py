"""The service as gRPC sees it: the state of a server, and what answers its calls.

The handlers take bytes and return bytes. Messages are decoded inside the RPC boundary, so that a
malformed one is answered with a status of the project's errors. Streams are read frame by frame,
which avoids the copies that the generated classes make.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from stratagem_proto.errors import StratagemError
from stratagem_proto.serving.handshake import challenge_handler
from stratagem_proto.serving.rpc_boundary import (
    Context,
    Handler,
    Make,
    Request,
    Response,
    Rpc,
    handler_of,
    shared_memory,
    unary_method,
)
from stratagem_proto.serving.status import StatusService
from stratagem_proto.v1 import (
    checkpoint_pb2,
    closed_step_pb2,
    closure_pb2,
    consistency_pb2,
    draws_pb2,
    session_pb2,
    succession_pb2,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.barrier_pb2 import BarrierRequest
from stratagem_proto.v1.keys_pb2 import ListKeysRequest
from stratagem_proto.v1.parameter_server_service_pb2 import DESCRIPTOR as SERVICE_FILE
from stratagem_proto.v1.replication_pb2 import ReplicationStatus
from stratagem_proto.v1.session_pb2 import Reached
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_proto.v1.variable_requests_pb2 import (
    AssignHeader,
    CreateVariablesHeader,
    DeleteVariablesRequest,
    DescribeVariablesRequest,
    ListVariablesRequest,
)
from stratagem_proto.wire.frames import Header
from stratagem_proto.wire.segment import Segment
from stratagem_psserver.checkpoints import Saves
from stratagem_psserver.exactly_once.receiving import Chunks
from stratagem_psserver.log.changes import Changes
from stratagem_psserver.rpcs.checkpoints import CheckpointRpcs
from stratagem_psserver.rpcs.sessions import (
    BarrierRpcs,
    ClosureRpcs,
    DrawRpcs,
    SessionRpcs,
    SuccessionRpcs,
)
from stratagem_psserver.rpcs.status import ParameterServerFacts
from stratagem_psserver.rpcs.steps import ConsistencyRpcs, ContributionRpcs
from stratagem_psserver.rpcs.updates import UpdateRpcs
from stratagem_psserver.rpcs.values import Frames, KeyRpcs, ValueRpcs, VariableRpcs
from stratagem_psserver.state import ServerState
from stratagem_psserver.uploads import RequestStream


class Service:
    """Answers calls about one state.

    Args:
        state: The state.
        replication: Returns the replica's part among those of its task; None if it is the only
            one.

    Attributes:
        state: The state.
        saves: The checkpoints that it writes.
        status: Describes it.
        handlers_for_all: The handlers of calls that are answered whether clients are served or not:
            those that ask for the status, or for a challenge.
        handlers: The handlers of all other calls.
    """

    def __init__(
        self, state: ServerState, replication: Callable[[], ReplicationStatus] | None = None
    ) -> None:
        self.state, self.saves = state, Saves(state)
        self._facts, self._replication = ParameterServerFacts(state, self.saves), replication
        self.status = StatusService(
            state.handshakes, state.incarnation, state.figures, self._fill_status
        )
        boundary = state.boundary()
        challenges = challenge_handler(state.handshakes, lambda: state.incarnation, boundary)
        self.handlers_for_all = (self.status.handler(), challenges)
        self.handlers = (
            service_handler(state),
            checkpoint_handler(state, self.saves),
            closure_handler(state),
            data_handler(state),
            succession_handler(state),
        )

    async def _fill_status(self, status: GetStatusResponse, with_variables: bool) -> None:
        await self._facts.fill(status, with_variables)
        if self._replication is not None:
            status.parameter_server.replication.CopyFrom(self._replication())


_SERVICE = SERVICE_FILE.services_by_name["ParameterServerService"]
_CHECKPOINTS = checkpoint_pb2.DESCRIPTOR.services_by_name["CheckpointService"]
_CLOSURES = closure_pb2.DESCRIPTOR.services_by_name["ClosureService"]
_DATA = draws_pb2.DESCRIPTOR.services_by_name["DataService"]
_SUCCESSION = succession_pb2.DESCRIPTOR.services_by_name["SuccessionService"]

SERVICE = _SERVICE.full_name

Answer = TypeVar("Answer")

Handlers = Mapping[str, Make]


def service_handler(state: ServerState) -> grpc.GenericRpcHandler:
    """Return the handler of the parameter-server service."""
    methods = _methods(state)
    handlers = {
        **_session_methods(methods, SessionRpcs(state)),
        **_variable_methods(methods, VariableRpcs(state), KeyRpcs(state)),
        **_value_methods(methods, ValueRpcs(state)),
        **_update_methods(methods, state),
        **_synchronous_methods(methods, state),
        **_consistency_methods(methods, ConsistencyRpcs(state)),
    }
    return _handler(state, _SERVICE, handlers)


def _methods(state: ServerState) -> Methods:
    return Methods(state.changes)


def _handler(
    state: ServerState, service: ServiceDescriptor, methods: Handlers
) -> grpc.GenericRpcHandler:
    return handler_of(state.boundary(), service, methods)


def checkpoint_handler(state: ServerState, saves: Saves) -> grpc.GenericRpcHandler:
    """Return the handler of the checkpoint service."""
    unary = _methods(state).unary
    rpcs, messages = CheckpointRpcs(state, saves), checkpoint_pb2
    handlers = {
        "HoldSteps": unary(messages.HoldStepsRequest, rpcs.hold),
        "ReleaseSteps": unary(messages.ReleaseStepsRequest, rpcs.release),
        "BeginSave": unary(messages.BeginSaveRequest, rpcs.begin),
        "OpenSnapshot": unary(messages.OpenSnapshotRequest, rpcs.open_snapshot),
        "CloseSnapshot": unary(messages.CloseSnapshotRequest, rpcs.close_snapshot),
        "FinishSave": unary(messages.FinishSaveRequest, rpcs.finish),
        "StageVariables": unary(messages.StageVariablesRequest, rpcs.stage),
        "RestoreVariables": unary(messages.RestoreVariablesRequest, rpcs.restore),
        "ListRestored": unary(messages.ListRestoredRequest, rpcs.list_restored),
    }
    return _handler(state, _CHECKPOINTS, handlers)


def closure_handler(state: ServerState) -> grpc.GenericRpcHandler:
    """Return the handler of the closure service."""
    unary, rpcs = _methods(state).unary, ClosureRpcs(state)
    handlers = {"EndClosures": unary(closure_pb2.EndClosuresRequest, rpcs.end)}
    return _handler(state, _CLOSURES, handlers)


def data_handler(state: ServerState) -> grpc.GenericRpcHandler:
    """Return the handler of the data service."""
    unary, rpcs = _methods(state).unary, DrawRpcs(state)
    handlers = {
        "OpenPass": unary(draws_pb2.OpenPassRequest, rpcs.open),
        "DrawBatch": unary(draws_pb2.DrawBatchRequest, rpcs.draw),
    }
    return _handler(state, _DATA, handlers)


def succession_handler(state: ServerState) -> grpc.GenericRpcHandler:
    """Return the handler of the succession service."""
    unary, rpcs = _methods(state).unary, SuccessionRpcs(state)
    handlers = {
        "AwaitVacancy": unary(succession_pb2.AwaitVacancyRequest, rpcs.await_vacancy),
        "Succeed": unary(succession_pb2.SucceedRequest, rpcs.succeed),
    }
    return _handler(state, _SUCCESSION, handlers)


def _session_methods(methods: Methods, rpcs: SessionRpcs) -> Handlers:
    return {
        "OpenSession": methods.unary(session_pb2.OpenSessionRequest, rpcs.open),
        "Heartbeat": methods.unary_not_durable(session_pb2.HeartbeatRequest, rpcs.heartbeat),
        "AttendSession": methods.unary_not_durable(session_pb2.AttendSessionRequest, rpcs.attend),
        "CloseSession": methods.unary(session_pb2.CloseSessionRequest, rpcs.close),
    }


def _variable_methods(methods: Methods, rpcs: VariableRpcs, keys: KeyRpcs) -> Handlers:
    return {
        "CreateVariables": methods.upload(CreateVariablesHeader, rpcs.create),
        "DescribeVariables": methods.unary(DescribeVariablesRequest, rpcs.describe),
        "ListVariables": methods.unary(ListVariablesRequest, rpcs.list),
        "DeleteVariables": methods.unary(DeleteVariablesRequest, rpcs.delete),
        "ListKeys": methods.unary(ListKeysRequest, keys.list),
    }


def _value_methods(methods: Methods, rpcs: ValueRpcs) -> Handlers:
    return {
        "Read": methods.streamed(pb.ReadRequest, rpcs.read),
        "Assign": methods.upload(AssignHeader, rpcs.assign),
    }


def _update_methods(methods: Methods, state: ServerState) -> Handlers:
    rpcs = UpdateRpcs(state)
    return {
        "UpdateAndRead": methods.bidi(pb.UpdateHeader, rpcs.update_and_read),
        "Update": methods.upload(pb.UpdateHeader, rpcs.update),
        "UpdateNonSlot": methods.upload(pb.UpdateHeader, rpcs.update_non_slot),
    }


def _synchronous_methods(methods: Methods, state: ServerState) -> Handlers:
    rpcs, wait = ContributionRpcs(state), BarrierRpcs(state).wait
    return {
        "CommitContribution": methods.unary(pb.CommitContributionRequest, rpcs.commit),
        "ListClosedSteps": methods.unary(closed_step_pb2.ListClosedStepsRequest, rpcs.list_closed),
        "FinishStep": methods.unary(closed_step_pb2.FinishStepRequest, rpcs.finish),
        "Barrier": methods.unary(BarrierRequest, wait),
    }


def _consistency_methods(methods: Methods, rpcs: ConsistencyRpcs) -> Handlers:
    pb = consistency_pb2
    return {
        "BeginStep": methods.unary(pb.BeginStepRequest, rpcs.begin),
        "SetConsistency": methods.unary(pb.SetConsistencyRequest, rpcs.change),
        "DescribeConsistency": methods.unary(pb.DescribeConsistencyRequest, rpcs.describe),
    }


class Methods:
    """What makes handlers of the four shapes that the service has.

    No answer leaves before all changes are on disk that it may tell of.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def unary(
        self, request_type: type[Request], method: Callable[[Request], Awaitable[Message]]
    ) -> Make:
        """Return what makes the handler of an RPC that takes a message and returns one."""

        async def answer(request: Request) -> bytes:
            return await self._durable(method(request))

        return self.unary_not_durable(request_type, answer)

    def unary_not_durable(
        self, request_type: type[Request], method: Callable[[Request], Awaitable[Response]]
    ) -> Make:
        """As `unary`, of an RPC whose answer tells of no change."""
        return unary_method(request_type, method)

    async def _durable(self, answer: Awaitable[Message]) -> bytes:
        """Return an answer, or raise its error, once all changes so far are on disk.

        Behind it is what the client shows with its next request, of how far the server has come.
        """
        result = await self._refused_durably(answer)
        reached = self._changes.reached
        await self._changes.durable()
        encoded = result.SerializeToString()
        return encoded + Reached(reached=reached).SerializeToString() if reached else encoded

    async def _refused_durably(self, answer: Awaitable[Answer]) -> Answer:
        try:
            return await answer
        except StratagemError:
            await self._changes.durable()
            raise

    def upload(
        self, header_type: type[Header], method: Callable[[Header, Chunks], Awaitable[Message]]
    ) -> Make:
        """As `unary`, of an RPC that takes a stream of frames."""

        def make(rpc: Rpc) -> Handler:
            async def handle(messages: AsyncIterator[bytes], context: Context) -> bytes:
                async with rpc.crossing(context) as crossing:
                    stream = RequestStream(messages, header_type, shared_memory(context))
                    header = await stream.header(rpc.require_sender)
                    await crossing.admit(header)
                    with rpc.span(header):
                        return await self._durable(method(header, stream))

            return grpc.stream_unary_rpc_method_handler(handle)

        return make

    def bidi(
        self,
        header_type: type[Header],
        method: Callable[[Header, Chunks, Segment | None], Awaitable[Frames]],
    ) -> Make:
        """As `unary`, of an RPC that takes a stream of frames and returns another one."""

        def make(rpc: Rpc) -> Handler:
            async def handle(
                messages: AsyncIterator[bytes], context: Context
            ) -> AsyncIterator[bytes]:
                async with rpc.crossing(context) as crossing:
                    segment = shared_memory(context)
                    stream = RequestStream(messages, header_type, segment)
                    header = await stream.header(rpc.require_sender)
                    await crossing.admit(header)
                    with rpc.span(header):
                        frames = await self._refused_durably(method(header, stream, segment))
                    if isinstance(frames, bytes):
                        await self._changes.durable()
                        yield frames
                        return
                    async with aclosing(self._durable_frames(frames)) as durable:
                        async for frame in durable:
                            yield frame

            return grpc.stream_stream_rpc_method_handler(handle)

        return make

    async def _durable_frames(
        self, frames: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """Yield frames of values, which do not change any more once the first one is made.

        However that ends, the frames are closed: the locks of their values would otherwise be held
        until a garbage collection.
        """
        is_first = True
        async with aclosing(frames):
            async for frame in frames:
                if is_first:
                    await self._changes.durable()
                    is_first = False
                yield frame

    def streamed(
        self,
        request_type: type[Request],
        method: Callable[[Request, Segment | None], AsyncGenerator[bytes, None]],
    ) -> Make:
        """As `unary`, of an RPC that returns a stream of frames."""

        def make(rpc: Rpc) -> Handler:
            async def handle(data: bytes, context: Context) -> AsyncIterator[bytes]:
                async with rpc.crossing(context) as crossing:
                    rpc.require_sender(data)
                    request, segment = request_type.FromString(data), shared_memory(context)
                    await crossing.admit(request)
                    # The caller runs between two frames, so this must not be its current span.
                    with rpc.span(request, current=False):
                        frames = self._durable_frames(method(request, segment))
                        async with aclosing(frames):
                            async for frame in frames:
                                yield frame

            return grpc.unary_stream_rpc_method_handler(handle)

        return make
