"""Updates whose answer has the values that the next step needs."""

from __future__ import annotations

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.wire.segment import Segment
from stratagem_psserver.exactly_once.mutations import Chunks
from stratagem_psserver.rpcs.answers import Frames, ReadTask, frames_of
from stratagem_psserver.rpcs.consistency import begun_now
from stratagem_psserver.rpcs.updates import UpdateRpcs
from stratagem_psserver.state import ServerState


class UpdateAndReadRpcs:
    """UpdateAndRead."""

    def __init__(self, state: ServerState, updates: UpdateRpcs) -> None:
        self._state, self._updates = state, updates

    async def update_and_read(
        self, header: pb.UpdateHeader, chunks: Chunks, segment: Segment | None = None
    ) -> Frames:
        if header.HasField("contribution") or header.backward.keep:
            raise InvalidArgumentError(
                "UpdateAndRead carries what is applied at once; send by Update what is "
                "only kept"
            )
        known = self._state.plans.known(header, chunks.text)
        reply = await self._updates.planned(header, chunks, known)
        update = pb.UpdateResponse.FromString(reply)
        session = self._state.session(header.key.session_id)
        grants = begun_now(self._state, session, header.then.begins)

        def headed(values: pb.ReadHeader) -> pb.UpdateAndReadHeader:
            return pb.UpdateAndReadHeader(update=update, values=values, grants=grants)

        plan = None if known is None else known.plan
        reading = ReadTask(self._state.store, header.then.selections, segment, plan)
        return frames_of(self._state, reading, headed)
