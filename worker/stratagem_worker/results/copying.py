"""Results on their way from one worker to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

import grpc

from stratagem_proto.errors import WorkerLostError
from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.session_pb2 import ROLE_WORKER, OpenSessionRequest, Task
from stratagem_proto.v1.worker_pb2_grpc import WorkerServiceStub
from stratagem_proto.wire.channel import PATIENT_CHANNEL_OPTIONS
from stratagem_worker.results.staying_results import StayingResults
from stratagem_worker.settings import WorkerSettings

if TYPE_CHECKING:
    # Exists in the types alone.
    from stratagem_proto.v1.worker_pb2_grpc import WorkerServiceAsyncStub

# The client has what is copied, or has it made again: better soon than late.
_SILENCE_SECONDS = 10.0


class Copies:
    """The results that one session copies; on the event loop.

    Args:
        results: Those of the session itself, which need no copy.
        settings: Of this worker.
    """

    def __init__(self, results: StayingResults, settings: WorkerSettings) -> None:
        self._results = results
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._under_way: set[Future[bytes]] = set()

    def begin(self, place: pb.ResultPlace) -> Future[bytes]:
        """Return a result to come; it fails with `StratagemError` if it cannot."""
        copying = asyncio.run_coroutine_threadsafe(self._payload(place), self._loop)
        self._under_way.add(copying)
        copying.add_done_callback(self._under_way.discard)
        return copying

    def end(self) -> None:
        """Give up what has not come."""
        for copying in list(self._under_way):
            copying.cancel()

    async def _payload(self, place: pb.ResultPlace) -> bytes:
        if place.session_id == self._results.session_id:
            return self._results.payload(place.closure)
        return await copied(place, self._settings)


async def copied(place: pb.ResultPlace, settings: WorkerSettings) -> bytes:
    """Return a result that stays on another worker.

    Raises:
        WorkerLostError: That worker cannot be reached, does not have it any more, or sends nothing
            for 10 s.
    """
    request = pb.CopyRequest(asking=_asking(place, settings), closure=place.closure)
    try:
        async with grpc.aio.insecure_channel(
            place.address, options=PATIENT_CHANNEL_OPTIONS
        ) as channel:
            stub = cast("WorkerServiceAsyncStub", WorkerServiceStub(channel))
            return b"".join([piece async for piece in _pieces(stub.Copy(request))])
    except (grpc.RpcError, asyncio.TimeoutError) as error:
        raise WorkerLostError(
            f"{settings.label} cannot copy the result of function {place.closure} from "
            f"the worker at {place.address}: {_why(error)}"
        ) from error


def _asking(place: pb.ResultPlace, settings: WorkerSettings) -> OpenSessionRequest:
    return OpenSessionRequest(
        protocol_version=PROTOCOL_VERSION,
        cluster_token=settings.token,
        session_id=place.session_id,
        role=ROLE_WORKER,
        task=Task(job=settings.job, index=settings.task),
    )


async def _pieces(
    call: grpc.aio.UnaryStreamCall[pb.CopyRequest, pb.CopyResponse],
) -> AsyncIterator[bytes]:
    while True:
        response = await asyncio.wait_for(call.read(), _SILENCE_SECONDS)
        if not isinstance(response, pb.CopyResponse):
            return
        yield response.piece


def _why(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.details()}"
    return f"nothing came for {_SILENCE_SECONDS:g} s"
