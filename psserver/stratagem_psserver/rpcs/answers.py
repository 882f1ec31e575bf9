"""Values on their way to who reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from google.protobuf.message import Message

from stratagem_proto.codec import split
from stratagem_proto.frames import encode_frame
from stratagem_proto.placed import encode_filled, place_by_runs
from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.segment import Segment
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.compute import TENSOR_BYTES
from stratagem_psserver.state import ServerState
from stratagem_psserver.step_plans import StepPlan
from stratagem_psserver.variables.choices import Choice
from stratagem_psserver.variables.held_snapshots import HeldSnapshot
from stratagem_psserver.variables.store import VariableStore

# So many runs let a client read nearly all of the time. Longer ones are copied beside
# the event loop, so that several clients are served at once.
_RUNS = 10


@dataclass(frozen=True)
class Reading:
    """What to read.

    Attributes:
        variables: Of which variables.
        selections: What of them.
        segment: Where to leave the values, if they fit; None to send them.
        plan: That of the update behind which the store is read, if it has one.
    """

    variables: VariableStore | HeldSnapshot
    selections: Sequence[pb.Selection]
    segment: Segment | None
    plan: StepPlan | None = None

    def choice(self) -> Choice:
        """What is answered."""
        if self.plan is not None and isinstance(self.variables, VariableStore):
            return self.plan.choice(self.variables, self.selections)
        return Choice.of(self.variables, self.selections)


async def frames_of(
    state: ServerState,
    reading: Reading,
    headed: Callable[[pb.ReadHeader], Message],
) -> AsyncIterator[bytes]:
    """What all that is selected is at one moment, as the frames of a stream.

    Args:
        state: The server.
        reading: What to read.
        headed: Makes the header of the stream of that of a Read.
    """
    names = [selection.variable for selection in reading.selections]
    async with state.locked(names):
        choice = reading.choice()
        # Frames are copies, so this is the snapshot that the locks are for.
        with state.budget.reserve(choice.nbytes, "a read") as reservation:
            message, segment = headed(choice.header), reading.segment
            frames: Sequence[bytes] = ()
            if segment is None or choice.layout.room > segment.nbytes:
                size = choice.nbytes + len(choice.selected) * TENSOR_BYTES
                frames = await state.compute.run(partial(_sent, message, choice), size)
            elif choice.nbytes <= CHUNK_BYTES:
                yield encode_filled(message, choice.layout, choice.fill, segment)
            else:
                async for frame in _placed(state, message, choice, segment):
                    yield frame
            reservation = reservation.hand_over()
    if choice.nbytes:
        state.figures.calls(pb.ReadRequest.__name__).sent.observe(choice.nbytes)
    with reservation:
        for frame in frames:
            yield frame


async def _placed(
    state: ServerState, header: Message, choice: Choice, segment: Segment
) -> AsyncIterator[bytes]:
    """Frames of which each is sent, and read, while the bytes of the next are placed.

    A pull of 10 MB takes 1.21 ms and not 1.63.
    """
    making = sum(each.nbytes for each in choice.selected if not each.is_there)
    tensors = await state.compute.run(choice.tensors, making)
    size = CHUNK_BYTES * max(1, choice.nbytes // (CHUNK_BYTES * _RUNS))
    frames = place_by_runs(header, tensors, segment, size)
    while frame := await state.compute.run(partial(next, frames, None), size):
        yield encode_frame(frame)
        await asyncio.sleep(0)  # others have their turn after each run


def _sent(header: Message, choice: Choice) -> Sequence[bytes]:
    return [encode_frame(frame) for frame in split(header, choice.tensors())]
