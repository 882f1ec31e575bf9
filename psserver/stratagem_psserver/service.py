"""The service as gRPC sees it: the state of a server, and what answers its calls.

The handlers take bytes and return bytes. Messages are decoded inside the RPC boundary, so that a
malformed one is answered with a status of the project's errors. Streams are read frame by frame,
which avoids the copies that the generated classes make.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from stratagem_proto.errors import StratagemError
from stratagem_proto.v1 import (
    checkpoint_pb2,
    closed_step_pb2,
    closure_pb2,
    consistency_pb2,
    draws_pb2,
    publication_pb2,
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
from stratagem_psserver.rpcs.publication import PublicationRpcs
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
from stratagem_rpc import tracing
from stratagem_rpc.server_call import CallMessages, ServerCall
from stratagem_rpc.serving.handshake import challenge_handler
from stratagem_rpc.serving.rpc_boundary import (
    Handler,
    Make,
    Request,
    Response,
    Rpc,
    handler_of,
    unary_method,
)
from stratagem_rpc.serving.status import StatusService


class Service:
    """What answers calls about one state. If there are replicas, `replication` tells its part."""

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
        self.handlers = handlers_of(state, self.saves)

    async def _fill_status(self, status: GetStatusResponse, with_variables: bool) -> None:
        await self._facts.fill(status, with_variables)
        if self._replication is not None:
            status.parameter_server.replication.CopyFrom(self._replication())


_SERVICE = SERVICE_FILE.services_by_name["ParameterServerService"]
_CHECKPOINTS = checkpoint_pb2.DESCRIPTOR.services_by_name["CheckpointService"]
_CLOSURES = closure_pb2.DESCRIPTOR.services_by_name["ClosureService"]
_DATA = draws_pb2.DESCRIPTOR.services_by_name["DataService"]
_PUBLICATION = publication_pb2.DESCRIPTOR.services_by_name["PublicationService"]
_SUCCESSION = succession_pb2.DESCRIPTOR.services_by_name["SuccessionService"]

SERVICE = _SERVICE.full_name

Answer = TypeVar("Answer")

Handlers: TypeAlias = Mapping[str, Make]
"""What makes the handler of each method of a service, by its name."""


def handlers_of(state: ServerState, saves: Saves) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of all services that clients call."""
    services = {_SERVICE: _methods(state), **_smaller_services(state, saves)}
    return tuple(
        handler_of(state.boundary(), service, methods) for service, methods in services.items()
    )


def _methods(state: ServerState) -> Handlers:
    """Return the methods of the parameter-server service."""
    make = Methods(state.changes)
    sessions, variables, values = SessionRpcs(state), VariableRpcs(state), ValueRpcs(state)
    updates, contributions = UpdateRpcs(state), ContributionRpcs(state)
    steps, clocks = closed_step_pb2, consistency_pb2
    consistency = ConsistencyRpcs(state)
    return {
        "OpenSession": make.unary(session_pb2.OpenSessionRequest, sessions.open),
        "Heartbeat": make.unary_not_durable(session_pb2.HeartbeatRequest, sessions.heartbeat),
        "AttendSession": make.unary_not_durable(session_pb2.AttendSessionRequest, sessions.attend),
        "CloseSession": make.unary(session_pb2.CloseSessionRequest, sessions.close),
        "CreateVariables": make.upload(CreateVariablesHeader, variables.create),
        "DescribeVariables": make.unary(DescribeVariablesRequest, variables.describe),
        "ListVariables": make.unary(ListVariablesRequest, variables.list),
        "DeleteVariables": make.unary(DeleteVariablesRequest, variables.delete),
        "ListKeys": make.unary(ListKeysRequest, KeyRpcs(state).list),
        "Read": make.download(pb.ReadRequest, values.read),
        "Assign": make.upload(AssignHeader, values.assign),
        "UpdateAndRead": make.bidi(pb.UpdateHeader, updates.update_and_read),
        "Update": make.upload(pb.UpdateHeader, updates.update),
        "UpdateNonSlot": make.upload(pb.UpdateHeader, updates.update_non_slot),
        "CommitContribution": make.unary(pb.CommitContributionRequest, contributions.commit),
        "ListClosedSteps": make.unary(steps.ListClosedStepsRequest, contributions.list_closed),
        "FinishStep": make.unary(steps.FinishStepRequest, contributions.finish),
        "Barrier": make.unary(BarrierRequest, BarrierRpcs(state).wait),
        "BeginStep": make.unary(clocks.BeginStepRequest, consistency.begin),
        "SetConsistency": make.unary(clocks.SetConsistencyRequest, consistency.change),
        "DescribeConsistency": make.unary(clocks.DescribeConsistencyRequest, consistency.describe),
    }


def _smaller_services(state: ServerState, saves: Saves) -> Mapping[ServiceDescriptor, Handlers]:
    make, checkpoints, closures = Methods(state.changes), checkpoint_pb2, closure_pb2
    unary, publishing = make.unary, PublicationRpcs(state)
    saving, drawing, succeeding = (
        CheckpointRpcs(state, saves),
        DrawRpcs(state),
        SuccessionRpcs(state),
    )
    return {
        _CHECKPOINTS: {
            "HoldSteps": unary(checkpoints.HoldStepsRequest, saving.hold),
            "ReleaseSteps": unary(checkpoints.ReleaseStepsRequest, saving.release),
            "BeginSave": unary(checkpoints.BeginSaveRequest, saving.begin),
            "OpenSnapshot": unary(checkpoints.OpenSnapshotRequest, saving.open_snapshot),
            "CloseSnapshot": unary(checkpoints.CloseSnapshotRequest, saving.close_snapshot),
            "FinishSave": unary(checkpoints.FinishSaveRequest, saving.finish),
            "StageVariables": unary(checkpoints.StageVariablesRequest, saving.stage),
            "RestoreVariables": unary(checkpoints.RestoreVariablesRequest, saving.restore),
            "ListRestored": unary(checkpoints.ListRestoredRequest, saving.list_restored),
        },
        _CLOSURES: {"EndClosures": unary(closures.EndClosuresRequest, ClosureRpcs(state).end)},
        _DATA: {
            "OpenPass": unary(draws_pb2.OpenPassRequest, drawing.open),
            "DrawBatch": unary(draws_pb2.DrawBatchRequest, drawing.draw),
        },
        _PUBLICATION: {
            "Publish": make.upload(publication_pb2.PublishHeader, publishing.publish),
            "ListVersions": unary(publication_pb2.ListVersionsRequest, publishing.list),
            "ReadVersion": make.download(publication_pb2.ReadVersionRequest, publishing.read),
        },
        _SUCCESSION: {
            "AwaitVacancy": unary(succession_pb2.AwaitVacancyRequest, succeeding.await_vacancy),
            "Succeed": unary(succession_pb2.SucceedRequest, succeeding.succeed),
        },
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
        try:
            result = await answer
        except StratagemError:
            await self._changes.durable()
            raise
        reached = self._changes.reached
        await self._changes.durable()
        encoded = result.SerializeToString()
        return encoded + Reached(reached=reached).SerializeToString() if reached else encoded

    def upload(
        self, header_type: type[Header], method: Callable[[Header, Chunks], Awaitable[Message]]
    ) -> Make:
        """As `unary`, of an RPC that takes a stream of frames."""

        def make(rpc: Rpc) -> Handler:
            async def handle(messages: CallMessages, call: ServerCall) -> bytes:
                async with rpc.crossing(call) as crossing:
                    stream = RequestStream(messages, header_type, call.segment)
                    header = await stream.header(rpc.require_sender)
                    await crossing.admit(header)
                    with tracing.answering(header, rpc.task):
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
            async def handle(messages: CallMessages, call: ServerCall) -> AsyncIterator[bytes]:
                async with rpc.crossing(call) as crossing:
                    segment = call.segment
                    stream = RequestStream(messages, header_type, segment)
                    header = await stream.header(rpc.require_sender)
                    await crossing.admit(header)
                    with tracing.answering(header, rpc.task):
                        try:
                            frames = await method(header, stream, segment)
                        except StratagemError:
                            await self._changes.durable()
                            raise
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

    def download(
        self,
        request_type: type[Request],
        method: Callable[[Request, Segment | None], AsyncGenerator[bytes, None]],
    ) -> Make:
        """As `unary`, of an RPC that returns a stream of frames."""

        def make(rpc: Rpc) -> Handler:
            async def handle(data: bytes, call: ServerCall) -> AsyncIterator[bytes]:
                async with rpc.crossing(call) as crossing:
                    rpc.require_sender(data)
                    request, segment = request_type.FromString(data), call.segment
                    await crossing.admit(request)
                    # The caller runs between two frames, so this must not be its current span.
                    with tracing.answering(request, rpc.task, current=False):
                        frames = self._durable_frames(method(request, segment))
                        async with aclosing(frames):
                            async for frame in frames:
                                yield frame

            return grpc.unary_stream_rpc_method_handler(handle)

        return make
