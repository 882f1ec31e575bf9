"""The call of one chief, on which a replica asks."""

from __future__ import annotations

import asyncio
from typing import Protocol

from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1.arbitration_pb2 import Answer, ArbitrateRequest, ArbitrateResponse


class ChiefCall(Protocol):
    """The replica's end of a call."""

    async def send(self, message: ArbitrateResponse) -> None:
        """Send a message behind all others; raise UnavailableError if the chief is gone."""

    async def receive(self) -> ArbitrateRequest:
        """Return the next message; raise UnavailableError if the chief is gone."""


class Office:
    """What a chief that has called is asked, and who waits for its answers.

    Attributes:
        name: The chief, as messages call it.
        delay: Why it does not answer, if it has said so.
    """

    def __init__(self, name: str) -> None:
        self.name, self.delay = name, ""
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        # A question that is given up must not leave half a message behind.
        self._messages: asyncio.Queue[ArbitrateResponse] = asyncio.Queue()
        self._has_ended = asyncio.Event()

    def post(self, message: ArbitrateResponse) -> None:
        """Have a message sent behind all others."""
        self._messages.put_nowait(message)

    async def send_all(self, call: ChiefCall) -> None:
        """Send what is posted; raise UnavailableError when the chief is gone."""
        while True:
            await call.send(await self._messages.get())

    async def until_end(self) -> None:
        """Wait until the call is to end."""
        await self._has_ended.wait()

    def expect(self, number: int) -> asyncio.Future[Answer]:
        """Return what will have the answer to a question."""
        self._answers[number] = answering = asyncio.get_running_loop().create_future()
        return answering

    def forget(self, number: int) -> None:
        """Wait for the answer no more."""
        self._answers.pop(number, None)

    def answer(self, answer: Answer) -> None:
        """Pass an answer to whoever waits for it."""
        self.delay = ""
        answering = self._answers.get(answer.number)
        if answering is not None and not answering.done():
            answering.set_result(answer)

    def end(self) -> None:
        """End the call, and tell those who wait; a repetition does nothing."""
        self._has_ended.set()
        for answering in self._answers.values():
            if not answering.done():
                answering.set_exception(
                    UnavailableError(f"{self.name} has left; start its program again")
                )
