"""Events about functions that the client of a session gets."""

from __future__ import annotations

import asyncio

from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_worker.session import Outbox


def test_the_beginning_of_a_function_that_has_ended_is_not_told() -> None:
    async def told() -> list[pb.WorkEvent]:
        outbox = Outbox()
        outbox.put_started(1)
        outbox.put_started(2)
        outbox.put_finished(pb.Finished(closure=1))
        return await _first_message(outbox)

    finished, started = pb.Finished(closure=1), pb.Started(closure=2)
    assert asyncio.run(told()) == [
        pb.WorkEvent(started=started),
        pb.WorkEvent(finished=finished),
    ]


def test_the_beginning_of_a_function_that_goes_on_is_told_alone() -> None:
    async def told() -> list[pb.WorkEvent]:
        outbox = Outbox()
        outbox.put_started(1)
        return await _first_message(outbox)

    assert asyncio.run(told()) == [pb.WorkEvent(started=pb.Started(closure=1))]


async def _first_message(outbox: Outbox) -> list[pb.WorkEvent]:
    message = await asyncio.wait_for(anext(outbox.messages()), timeout=10)
    return list(pb.WorkResponse.FromString(message).events)
