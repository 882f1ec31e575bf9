"""Results that stay on a worker until their client releases them, and copies of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future

import grpc

from stratagem_proto.errors import NotFoundError, WorkerLostError
from stratagem_proto.memory import half_of_memory
from stratagem_proto.protocol import spoken
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.session_pb2 import ROLE_WORKER, OpenSessionRequest, Task
from stratagem_proto.wire.payloads import Pieces
from stratagem_rpc.channel import ASKING_CHANNEL_OPTIONS, Expected, open_aio_channel
from stratagem_rpc.proving import prove
from stratagem_worker.settings import WorkerSettings

_COPY = f"/{pb.DESCRIPTOR.services_by_name['WorkerService'].full_name}/Copy"

LARGE_BYTES = 1 << 16
"""A result of so many bytes or more is large: asking for it takes less than it does."""


class ResultMemory:
    """The bytes that results of all sessions may take. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._changing = threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Return whether there is so much, which is the caller's then."""
        with self._changing:
            fits = nbytes <= self._free
            self._free -= nbytes * fits
            return fits

    def give_back(self, nbytes: int) -> None:
        with self._changing:
            self._free += nbytes


class StayingResults:
    """The large results of one session, as they travel, by their functions. Thread-safe."""

    def __init__(self, session_id: bytes, memory: ResultMemory) -> None:
        self.session_id = session_id
        self._memory = memory
        self._payloads: dict[int, bytes] = {}
        self._closed = False
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def nbytes(self) -> int:
        return sum(len(payload) for payload in list(self._payloads.values()))

    def keep_if_large(self, finished: pb.Finished) -> pb.Finished:
        """Keep a result if it is large and there is memory; return what is sent of the outcome."""
        closure, payload = finished.closure, finished.payload
        if len(payload) < LARGE_BYTES:
            return finished
        with self._changing:
            self._drop(closure)
            if self._closed or not self._memory.take(len(payload)):
                return finished
            self._payloads[closure] = payload
        return pb.Finished(closure=closure, staying_bytes=len(payload))

    def payload(self, closure: int) -> bytes:
        """Return a result; raise `NotFoundError` if it is not here."""
        if closure not in self._payloads:
            raise NotFoundError(
                f"the result of function {closure} is not here; it was released, or "
                "belongs to another session"
            )
        return self._payloads[closure]

    def release(self, closures: Iterable[int]) -> None:
        with self._changing:
            for closure in closures:
                self._drop(closure)

    def close(self) -> None:
        """Forget all, and keep none any more."""
        self._closed = True
        self.release(list(self._payloads))

    def _drop(self, closure: int) -> None:
        self._memory.give_back(len(self._payloads.pop(closure, b"")))


# The client has what is copied, or has it made again: better soon than late.
_SILENCE_SECONDS = 10.0


class Copies:
    """The results that one session copies; on the event loop."""

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
        return await _copy_from_worker(place, self._settings)


async def _copy_from_worker(place: pb.ResultPlace, settings: WorkerSettings) -> bytes:
    """Return a result that stays on another worker.

    Raises:
        WorkerLostError: That worker cannot be reached, does not have it any more, or sends nothing
            for 10 s.
        ResourceExhaustedError: It sends more than half of the memory.
    """
    asking = OpenSessionRequest(
        **spoken(),
        session_id=place.session_id,
        role=ROLE_WORKER,
        task=Task(job=settings.job, index=settings.task),
    )
    try:
        async with open_aio_channel(
            place.address, ASKING_CHANNEL_OPTIONS, Expected(settings.job), settings.certificates
        ) as channel:
            await prove(channel, settings.token, "Copy", asking, _SILENCE_SECONDS)
            copy: grpc.aio.UnaryStreamMultiCallable[pb.CopyRequest, pb.CopyResponse]
            copy = channel.unary_stream(
                _COPY, pb.CopyRequest.SerializeToString, pb.CopyResponse.FromString
            )
            call = copy(pb.CopyRequest(asking=asking, closure=place.closure))
            found = Pieces(half_of_memory())
            while True:
                response = await asyncio.wait_for(call.read(), _SILENCE_SECONDS)
                if not isinstance(response, pb.CopyResponse):
                    return found.joined(b"")
                found.add(response.piece)
    except (grpc.RpcError, asyncio.TimeoutError) as error:
        silent = f"nothing came for {_SILENCE_SECONDS:g} s"
        why = error.details() if isinstance(error, grpc.RpcError) else silent
        raise WorkerLostError(
            f"{settings.label} cannot copy the result of function {place.closure} from "
            f"the worker at {place.address}: {why}"
        ) from error
