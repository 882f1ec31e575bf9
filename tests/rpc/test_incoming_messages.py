"""Messages of a call over a socket, on their way to its handler."""

from __future__ import annotations

import asyncio

import pytest

from stratagem_rpc.socket_server.call import IncomingMessages
from stratagem_rpc.sockets.frames import FrameKind, SocketFrame


def message(data: bytes, is_last: bool = False) -> SocketFrame:
    return SocketFrame(FrameKind.MESSAGE, is_last, data, b"")


def test_nothing_is_taken_behind_what_was_refused() -> None:
    taken: list[bytes] = []

    def take(data: bytes | memoryview) -> None:
        taken.append(bytes(data))
        if data == b"refused":
            raise ValueError("no")

    async def read() -> None:
        messages = IncomingMessages(message(b"first"), lambda: None, patience=None)
        messages.divert(take)
        reading = asyncio.ensure_future(collected(messages))
        await asyncio.sleep(0)
        # As when one read of the socket brings them all.
        for data in (b"second", b"refused", b"behind"):
            messages.put(message(data))
        messages.put(message(b"last", is_last=True))
        with pytest.raises(ValueError, match="no"):
            await reading

    async def collected(messages: IncomingMessages) -> None:
        async for data in messages:
            taken.append(bytes(data))

    asyncio.run(read())

    assert taken == [b"first", b"second", b"refused"]


def test_who_waits_is_cancelled_though_a_message_came_just_before_the_end() -> None:
    async def read() -> None:
        messages = IncomingMessages(message(b"first"), lambda: None, patience=60)
        reading = asyncio.ensure_future(drained(messages))
        await asyncio.sleep(0)
        messages.put(message(b"second"))
        messages.close()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(reading, 20)

    async def drained(messages: IncomingMessages) -> None:
        async for _ in messages:
            pass

    asyncio.run(read())
