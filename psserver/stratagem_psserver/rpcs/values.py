"""The RPCs that create, describe, list, delete, read and assign variables."""

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

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.key_index import page_of
from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.keys_pb2 import ListKeysRequest, ListKeysResponse
from stratagem_proto.v1.parameter_server_pb2 import ReadHeader
from stratagem_proto.v1.variable_requests_pb2 import (
    AssignHeader,
    AssignResponse,
    CreateVariablesHeader,
    CreateVariablesResponse,
    DeleteVariablesRequest,
    DeleteVariablesResponse,
    DescribeVariablesRequest,
    DescribeVariablesResponse,
    ListVariablesRequest,
    ListVariablesResponse,
)
from stratagem_proto.wire.frames import encode_at_once, encode_frame, split
from stratagem_proto.wire.placed import encode_filled, place_by_runs
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.tensors import as_bytes
from stratagem_psserver.cluster import check_training
from stratagem_psserver.environment import TENSOR_BYTES
from stratagem_psserver.exactly_once.receiving import Chunks, Manifest, StagedTensors
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.rpcs.steps import begun_now, report_inputs
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.assignments import PreparedWrite, prepare, run
from stratagem_psserver.variables.creation import check_made, initial_values, sent_tensors
from stratagem_psserver.variables.locks import Holding, LockUse
from stratagem_psserver.variables.reads import ReadPlan, announce
from stratagem_psserver.variables.snapshots import HeldSnapshot
from stratagem_psserver.variables.store import VariableStore, joined_with, separate

# Runs of up to this size are copied on the event loop. Longer ones are copied in threads, so that
# several clients are served at once.
_RUN_BYTES = 4 * CHUNK_BYTES
# An answer of more bytes counts in the budget until it is sent, since clients may read slowly.
_SMALL_BYTES = 64 << 10
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
        announced: What is to be read soon.
    """

    plan: Callable[[], ReadPlan]
    selections: Sequence[pb.Selection]
    segment: Segment | None
    session: Session
    request: str
    joint_rows: Sequence[pb.JointRows] = ()
    announced: Sequence[pb.JointRows] = ()


Frames: TypeAlias = bytes | AsyncGenerator[bytes, None]
"""An answer: its only frame, or a generator of its frames, which the caller closes."""

MakeHeader: TypeAlias = Callable[[ReadHeader], Message]
"""Makes the header of an answer from the header of its values."""


def frames_of(state: ServerState, reading: ReadTask, make_header: MakeHeader) -> Frames:
    """Return the selected values, all as they are at one moment, as the frames of a stream."""
    plan, segment = reading.plan(), reading.segment
    is_placed = segment is not None and plan.layout.room <= segment.nbytes
    is_small = plan.nbytes <= (CHUNK_BYTES if is_placed else _SMALL_BYTES)
    # The event loop runs nothing else meanwhile, so it is enough that the locks are free.
    if not is_small or plan.is_on_disk or not state.locks.are_free(plan.owners):
        return _frames(state, reading, make_header)
    with state.budget.reserve(plan.nbytes, "a read", reading.session.label):
        message = make_header(plan.present_header())
        if segment is not None and is_placed:
            frame = encode_filled(message, plan.layout, plan.fill, segment)
        else:
            frame = encode_at_once(message.SerializeToString(), plan.tensors())
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
    locks = state.locked(names, LockUse(reading.session.label, "read"))
    async with locks:
        plan = reading.plan()
        announce(state.store, reading.announced)
        # Frames are copies of the values, which must not change until all frames are made.
        with state.budget.reserve(plan.nbytes, "a read", reading.session.label):
            segment, message = reading.segment, make_header(plan.present_header())
            _count(state, reading, plan)
            frames: SentValues | AsyncGenerator[bytes, None]
            if segment is None or plan.layout.room > segment.nbytes:
                tensors = await state.compute.run(plan.tensors, plan.making)
                made = map(encode_frame, split(message, tensors))
                making = partial(state.compute.run, nbytes=_size(plan))
                frames = SentValues(made, locks, making)
            else:
                frames = _placed(state, message, plan, segment)
            async with aclosing(frames):
                async for frame in frames:
                    yield frame


def _size(plan: ReadPlan) -> int:
    return plan.nbytes + len(plan.selected) * TENSOR_BYTES


def _is_one_run(plan: ReadPlan) -> bool:
    """Return whether the values are placed in one run."""
    if plan.nbytes <= CHUNK_BYTES:
        return True
    # It takes longer to look rows up than to copy them.
    return _size(plan) <= _RUN_BYTES and not plan.making


async def _placed(
    state: ServerState, header: Message, plan: ReadPlan, segment: Segment
) -> AsyncGenerator[bytes, None]:
    """Yield frames; while one is sent and read, the bytes of the next are placed."""
    if _is_one_run(plan):
        placing = partial(encode_filled, header, plan.layout, plan.fill, segment)
        # A disk would hold up the event loop.
        yield await state.compute.run(placing, plan.making) if plan.is_on_disk else placing()
        return
    tensors = await state.compute.run(plan.tensors, plan.making)
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


class ValueRpcs:
    """Read and Assign."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def read(
        self, request: pb.ReadRequest, segment: Segment | None = None
    ) -> AsyncGenerator[bytes, None]:
        state = self._state
        if not request.into_segment:
            segment = None
        session = state.finished(request.session_id, request.finished, request.report)
        report_inputs(state, session, request.inputs)
        grants = begun_now(state, session, request.begins)
        if request.HasField("after"):
            await self._wait(session, request.after, request.wait_seconds)
        variables = state.variables(session.id, request.snapshot)
        selections, joint_rows = request.selections, request.joint_rows

        def make_header(header: pb.ReadHeader) -> pb.ReadHeader:
            header.rejected_steps = state.rounds.rejected(request.after.group)
            header.grants.extend(grants)
            header.reached = state.changes.reached
            return header

        def plan() -> ReadPlan:
            if isinstance(variables, HeldSnapshot):
                return ReadPlan.for_selections(variables, selections).with_rows(
                    variables, joint_rows
                )
            return state.read_plans.plan(selections, joint_rows)

        reading = ReadTask(plan, selections, segment, session, "ReadRequest", joint_rows)
        frames = frames_of(state, reading, make_header)
        if isinstance(frames, bytes):
            yield frames
            return
        async with aclosing(frames):
            async for frame in frames:
                yield frame

    async def _wait(self, session: Session, mark: pb.StepMark, seconds: float) -> None:
        state = self._state

        def applied() -> bool | None:
            state.inputs.require_alike(session)
            return state.is_applied(mark, session)

        if applied():
            return
        waiter = state.step_waiter(session, mark)
        if not await state.waits.until(("group", mark.group), applied, seconds, waiter):
            state.rounds.require_finished(mark)
            raise DeadlineExceededError(
                f"step {mark.step} of {mark.group!r} was not applied in time: "
                f"{state.rounds.missing(mark)}. It waits for {state.explained(waiter)}"
            )

    async def assign(self, header: AssignHeader, chunks: Chunks) -> AssignResponse:
        return await self._state.mutations.apply_once(
            header,
            Manifest(header.tensors, borrows=True),
            chunks,
            partial(self._assign, header),
            AssignResponse,
        )

    async def _assign(self, header: AssignHeader, staged: StagedTensors) -> AssignResponse:
        state = self._state
        names = [assignment.variable for assignment in header.assignments]
        async with state.changing(names, LockUse(staged.session.label, "assignment")):
            writes = prepare(state.store, header.assignments, staged.tensors)
            size = sum(write.value.nbytes + TENSOR_BYTES for write in writes)
            await state.compute.run(partial(run, writes, state.store.memory_limit), size)
            return AssignResponse(versions=[_next_version(write) for write in writes])


def _next_version(write: PreparedWrite) -> int:
    write.variable.version += 1
    return write.variable.version


class VariableRpcs:
    """CreateVariables, DescribeVariables, ListVariables and DeleteVariables."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def create(
        self, header: CreateVariablesHeader, chunks: Chunks
    ) -> CreateVariablesResponse:
        check_training(header.training)
        sent = sent_tensors(header.variables)
        return await self._state.mutations.apply_once(
            header, Manifest(sent), chunks, partial(self._create, header), CreateVariablesResponse
        )

    async def _create(
        self, header: CreateVariablesHeader, staged: StagedTensors
    ) -> CreateVariablesResponse:
        state, specs = self._state, header.variables
        nbytes = check_made(specs)
        with state.budget.reserve(nbytes, "making initial values", staged.session.label):
            making = partial(initial_values, specs, staged.tensors)
            values = await state.compute.run(making, nbytes)
        # A slot must not appear while its owner is being stepped.
        names = [variable.slot_of or variable.name for variable in specs]
        async with state.locked(names, LockUse(staged.session.label, "creation")):
            created = state.store.create(specs, values)
            state.cluster.training = header.training or state.cluster.training
            return CreateVariablesResponse(variables=created)

    async def describe(self, request: DescribeVariablesRequest) -> DescribeVariablesResponse:
        self._state.session(request.session_id)
        described = self._state.store.describe(request.names)
        return DescribeVariablesResponse(variables=described)

    async def list(self, request: ListVariablesRequest) -> ListVariablesResponse:
        self._state.session(request.session_id)
        listed, training = self._state.store.listing(request.kinds), self._state.cluster.training
        return ListVariablesResponse(variables=listed, training=training)

    async def delete(self, request: DeleteVariablesRequest) -> DeleteVariablesResponse:
        return await self._state.mutations.once(
            request, partial(self._delete, request), DeleteVariablesResponse
        )

    async def _delete(
        self, request: DeleteVariablesRequest, session: Session
    ) -> DeleteVariablesResponse:
        state, names = self._state, list(request.names)
        use = LockUse(session.label, "deletion")
        async with state.locked_owners(partial(_touched, state.store, names), use):
            others = joined_with(state.store, names)
            deleted = state.store.delete(names)
            # Otherwise they would keep the joint memory that the deleted variables had a part of.
            separate(state.store, others)
            state.optimizers.forget(deleted)
            return DeleteVariablesResponse(names=deleted)


def _touched(store: VariableStore, names: Sequence[str]) -> list[str]:
    """Return the owners of variables to delete, and of those that share memory with them."""
    others = [each.name for each in joined_with(store, names)]
    return store.owners([*names, *others])


class KeyRpcs:
    """The RPC ListKeys."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def list(self, request: ListKeysRequest) -> ListKeysResponse:
        state = self._state
        session = state.session(request.session_id)
        # A request that stores rows changes the keys in place.
        async with state.locked([request.table], LockUse(session.label, "listing of keys")):
            variables = state.variables(session.id, request.snapshot)
            keys = variables.get(request.table).keys()
            # Paging selects the larger keys and makes a mask of them.
            with state.budget.reserve(2 * keys.nbytes, "listing keys", session.label):
                paging = partial(_page, request, keys)
                return await state.compute.run(paging, keys.nbytes)


def _page(request: ListKeysRequest, keys: torch.Tensor) -> ListKeysResponse:
    after = request.after if request.HasField("after") else None
    page, more = page_of(keys, after, request.limit)
    return ListKeysResponse(keys=bytes(as_bytes(page)), more=more)
