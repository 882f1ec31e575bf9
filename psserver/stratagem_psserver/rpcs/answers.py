"""Sending values to clients that read them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeAlias

import torch
from google.protobuf.message import Message

from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.parameter_server_pb2 import ReadHeader
from stratagem_proto.wire.frames import encode_frame, split
from stratagem_proto.wire.placed import encode_filled, place_by_runs
from stratagem_proto.wire.segment import Segment
from stratagem_psserver.environment import TENSOR_BYTES
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.locks import Holding, LockUse
from stratagem_psserver.variables.read_plans import ReadPlan

# Runs of up to this size are copied on the event loop. Longer ones are copied in threads, so that
# several clients are served at once.
_RUN_BYTES = 4 * CHUNK_BYTES
# With this many runs, a client reads one while the next is copied, and hardly ever waits.
_MOST_RUNS = 10


class ReadTask(NamedTuple):
    """A request to read.

    Attributes:
        plan: Plans the answer from the present state of the variables.
        selections: What to read.
        segment: The shared memory for the values, if they fit; None to send them.
        session: The session of the client that reads.
        request: The name of the first message of the RPC, to whose figures the values count.
        joint_rows: What to read besides.
    """

    plan: Callable[[], ReadPlan]
    selections: Sequence[pb.Selection]
    segment: Segment | None
    session: Session
    request: str
    joint_rows: Sequence[pb.JointRows] = ()

    @property
    def client(self) -> str:
        """The label of the client."""
        return self.session.label


Frames: TypeAlias = bytes | AsyncGenerator[bytes, None]
"""An answer: its only frame, or a generator of its frames, which the caller closes."""

MakeHeader: TypeAlias = Callable[[ReadHeader], Message]
"""Makes the header of an answer from the header of its values."""


def frames_of(state: ServerState, reading: ReadTask, make_header: MakeHeader) -> Frames:
    """Return the selected values, all as they are at one moment, as the frames of a stream."""
    only = _only_frame(state, reading, make_header)
    return _frames(state, reading, make_header) if only is None else only


def _only_frame(state: ServerState, reading: ReadTask, make_header: MakeHeader) -> bytes | None:
    """Return the only frame of a small answer in shared memory; None for other answers."""
    if (segment := reading.segment) is None:
        return None
    plan = reading.plan()
    if plan.nbytes > CHUNK_BYTES or plan.layout.room > segment.nbytes:
        return None
    # The event loop runs nothing else meanwhile, so it is enough that the locks are free.
    if not state.locks.are_free(plan.owners):
        return None
    with state.budget.reserve(plan.nbytes, "a read", reading.client):
        message = make_header(plan.present_header())
        frame = encode_filled(message, plan.layout, plan.fill, segment)
    _count(state, reading, plan)
    return frame


def _count(state: ServerState, reading: ReadTask, plan: ReadPlan) -> None:
    if plan.nbytes:
        state.figures.calls(reading.request).sent.observe(plan.nbytes)
        reading.session.sent += plan.nbytes


async def _frames(
    state: ServerState, reading: ReadTask, make_header: MakeHeader
) -> AsyncGenerator[bytes, None]:
    names = [selection.variable for selection in reading.selections]
    names += chain.from_iterable(each.variables for each in reading.joint_rows)
    locks = state.locked(names, LockUse(reading.client, "read"))
    async with locks:
        plan = reading.plan()
        # Frames are copies of the values, which must not change until all frames are made.
        with state.budget.reserve(plan.nbytes, "a read", reading.client):
            segment, message = reading.segment, make_header(plan.present_header())
            _count(state, reading, plan)
            frames: SentValues | AsyncGenerator[bytes, None]
            if segment is None or plan.layout.room > segment.nbytes:
                frames = await _sent(state, message, plan, locks)
            else:
                frames = _placed(state, message, plan, segment)
            async with aclosing(frames):
                async for frame in frames:
                    yield frame


async def _sent(state: ServerState, header: Message, plan: ReadPlan, locks: Holding) -> SentValues:
    frames = map(encode_frame, split(header, await _tensors(state, plan)))
    return SentValues(frames, locks, partial(state.compute.run, nbytes=_size(plan)))


async def _tensors(state: ServerState, plan: ReadPlan) -> Sequence[torch.Tensor]:
    making = sum(each.nbytes for each in plan.selected if not each.is_there)
    return await state.compute.run(plan.tensors, making)


def _size(plan: ReadPlan) -> int:
    return plan.nbytes + len(plan.selected) * TENSOR_BYTES


def _is_one_run(plan: ReadPlan) -> bool:
    """Return whether the values are placed in one run, on the event loop."""
    if plan.nbytes <= CHUNK_BYTES:
        return True
    # It takes longer to look rows up than to copy them.
    is_short = _size(plan) <= _RUN_BYTES
    return is_short and all(each.is_there for each in plan.selected)


async def _placed(
    state: ServerState, header: Message, plan: ReadPlan, segment: Segment
) -> AsyncGenerator[bytes, None]:
    """Yield frames; while one is sent and read, the bytes of the next are placed."""
    if _is_one_run(plan):
        yield encode_filled(header, plan.layout, plan.fill, segment)
        return
    tensors = await _tensors(state, plan)
    chunks = plan.nbytes // (CHUNK_BYTES * _MOST_RUNS)
    size = max(_RUN_BYTES, CHUNK_BYTES * chunks)
    # A run of the least size counts as no work, so that it is placed on the event loop.
    work = size - _RUN_BYTES + len(plan.selected) * TENSOR_BYTES
    frames = place_by_runs(header, tensors, segment, size)
    while frame := await state.compute.run(partial(next, frames, None), work):
        yield encode_frame(frame)
        await asyncio.sleep(0)  # lets other tasks run after each run


class SentValues(AsyncIterator[bytes]):
    """Frames of values whose locks are held; each frame is made when it is asked for.

    In this way the bytes of a frame are in a processor's cache when they are sent, and no frame
    waits for later ones. As soon as another task waits for one of the locks, all frames that are
    left are made at once and the locks are released, so that a slow reader blocks nobody. The
    caller closes the iterator.

    Args:
        frames: Makes the frames, which are copies of the values.
        locks: The locks of the values.
        compute: Runs a function that takes as long as making all frames.
    """

    def __init__(
        self,
        frames: Iterator[bytes],
        locks: Holding,
        compute: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._frames, self._locks, self._compute = frames, locks, compute
        self._made: deque[bytes] = deque()
        self._making: asyncio.Future[None] | None = None
        locks.notify_when_contended(self._begin_making_all)

    def _begin_making_all(self) -> None:
        if self._making is None:
            self._making = asyncio.ensure_future(self._make_all())

    async def _make_all(self) -> None:
        try:
            await self._compute(lambda: self._made.extend(self._frames))
        finally:
            self._locks.release()

    async def __anext__(self) -> bytes:
        if self._making is not None:
            await asyncio.shield(self._making)
        frame = self._made.popleft() if self._made else next(self._frames, None)
        if frame is None:
            raise StopAsyncIteration
        return frame

    async def aclose(self) -> None:
        """Return once the values are no longer being read."""
        if self._making is not None:
            await asyncio.wait([self._making])
