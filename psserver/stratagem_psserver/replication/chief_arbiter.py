"""The chief of the cluster as the arbiter: it calls, and is asked on its call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.arbitration_pb2 import (
    Answer,
    ArbitrateRequest,
    ArbitrateResponse,
    ChiefIntroduction,
    Question,
    Report,
)
from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_proto.v1.session_pb2 import Task
from stratagem_psserver.replication.arbiter import require_next
from stratagem_psserver.replication.exchange import Channel
from stratagem_psserver.settings import ServerSettings


def chief_name(introduction: ChiefIntroduction) -> str:
    task, number = introduction.asking.task, introduction.chief.hex()[:8]
    return f"/job:{task.job}/task:{task.index} (chief {number})"


def require_memory(settings: ServerSettings) -> None:
    """Refuse replicas whose state outlives on disk what a chief knows of views."""
    if settings.durability != "none":
        raise InvalidArgumentError(
            "--arbiter chief keeps in the chief's memory which replica serves, but the replicas of "
            f"{settings.label} would have their state on disk: once all programs have ended, "
            "nobody would know which of the states is the last. Give another arbiter, or "
            "--durability none"
        )


def require_chief(introduction: ChiefIntroduction, settings: ServerSettings) -> None:
    """Check that whoever calls may decide which replica of a task serves."""
    name = chief_name(introduction)
    if len(introduction.chief) != SESSION_ID_BYTES:
        raise InvalidArgumentError(f"{name} has no number of {SESSION_ID_BYTES} bytes")
    called = introduction.server
    if called != Task(job=settings.job, index=settings.task):
        raise FailedPreconditionError(
            f"{name} takes {settings.label} for /job:{called.job}/task:{called.index}; correct the "
            f"addresses of the {settings.job} job in its cluster"
        )
    if introduction.replicas != settings.replicas:
        raise FailedPreconditionError(
            f"the cluster of {name} lists {introduction.replicas} addresses of {settings.label}, "
            f"which has --replicas {settings.replicas}; list them all, with commas between"
        )


class Pledge:
    """The part of one process in the decisions of chiefs, of which it believes one at a time.

    It lasts as long as the process, through all states that the process has.

    Attributes:
        chief: The chief whose answers count; empty before there was one.
        known: The last view that a chief has told of; None if none has.
    """

    def __init__(self) -> None:
        self.chief = b""
        self.known: View | None = None
        self._term = 0
        self._numbers = count(1)
        # What was asked for and may have been granted, by the number of the question.
        self._wanted: dict[int, View] = {}

    def take(self, chief: bytes) -> None:
        """Believe this chief from now on, and no other."""
        if chief != self.chief:
            self.chief, self._term = chief, 0

    def admit(self, term: int) -> None:
        """Note that the present chief counts on this process in its term."""
        self._term = term

    def ask(self, present: View | None = None, following: View | None = None) -> Question:
        """Return the next question; it has to be sent to the present chief."""
        question = Question(number=next(self._numbers), present=present, following=following)
        if following is not None:
            self._wanted[question.number] = following
        return question

    def hear(self, answer: Answer) -> None:
        """Learn from an answer of the present chief, whether or not anybody still waits for it."""
        if answer.replaced:
            self._learn(self._wanted.get(answer.number))
        elif answer.HasField("view"):
            self._learn(answer.view)
        self._wanted = {
            number: view for number, view in self._wanted.items() if number > answer.number
        }

    def _learn(self, view: View | None) -> None:
        if view is not None and (self.known is None or view.epoch > self.known.epoch):
            self.known = view

    def report(self, replica: Replica, inquiry: int = 0) -> Report:
        """Return what the chief has to know before it decides."""
        wanted = self._wanted.values()
        return Report(
            inquiry=inquiry, replica=replica, known=self.known, wanted=wanted, term=self._term
        )


ChiefCall: TypeAlias = Channel[ArbitrateResponse, ArbitrateRequest]
"""The replica's end of a call."""


class ChiefConnection:
    """What a chief that has called is asked, and who waits for its answers.

    Attributes:
        name: The chief, as messages call it.
        delay: Why it does not answer, if it has said so.
        has_ended: Whether the call is to end.
    """

    def __init__(self, name: str) -> None:
        self.name, self.delay = name, ""
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        # A question that is given up must not leave half a message behind.
        self._messages: asyncio.Queue[ArbitrateResponse] = asyncio.Queue()
        self.has_ended = asyncio.Event()

    def post(self, message: ArbitrateResponse) -> None:
        self._messages.put_nowait(message)

    async def send_all(self, call: ChiefCall) -> None:
        while True:
            await call.send(await self._messages.get())

    async def ask(self, question: Question) -> Answer:
        answering: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[question.number] = answering
        self.post(ArbitrateResponse(question=question))
        try:
            return await answering
        finally:
            self._answers.pop(question.number, None)

    def answer(self, answer: Answer) -> None:
        self.delay = ""
        answering = self._answers.get(answer.number)
        if answering is not None and not answering.done():
            answering.set_result(answer)

    def end(self) -> None:
        """End the call, and tell those who wait; a repetition does nothing."""
        self.has_ended.set()
        for answering in self._answers.values():
            if not answering.done():
                answering.set_exception(
                    UnavailableError(f"{self.name} has left; start its program again")
                )


class ChiefArbiter:
    """Asks the chief that has called."""

    def __init__(self, settings: ServerSettings, seconds: float = 1.0) -> None:
        require_memory(settings)
        self._settings, self._seconds = settings, seconds
        self._pledge = Pledge()
        self._chief: ChiefConnection | None = None
        self._has_come = asyncio.Event()
        self._is_closed = False

    async def read(self) -> View | None:
        """As `Arbiter.read`."""
        answer = await self._in_time()
        return answer.view if answer.HasField("view") else None

    async def replace(self, present: View | None, following: View) -> bool:
        """As `Arbiter.replace`; raise InternalError if the view does not have the next epoch."""
        require_next(present, following)
        return (await self._in_time(present, following)).replaced

    async def _in_time(self, present: View | None = None, following: View | None = None) -> Answer:
        asking = asyncio.ensure_future(self._ask(present, following))
        try:
            await asyncio.wait([asking], timeout=self._seconds)
            if asking.done():
                return asking.result()
        finally:
            asking.cancel()
        label, chief = self._settings.label, self._chief
        if chief is None:
            raise UnavailableError(
                f"no chief has called {label}, whose replicas leave it to the chief which of them "
                "serves; start the program of the chief, with the addresses of all replicas of "
                f"{label} in its cluster"
            )
        reason = chief.delay or "see that it is not suspended"
        raise UnavailableError(
            f"{chief.name} has not answered {label} within {self._seconds:g} s: {reason}"
        )

    async def _ask(self, present: View | None, following: View | None) -> Answer:
        while (chief := self._chief) is None:
            await self._has_come.wait()
        return await chief.ask(self._pledge.ask(present, following))

    async def serve(self, call: ChiefCall, replica: Callable[[], Replica]) -> None:
        """Be called by a chief, until one of the two ends it.

        Args:
            call: The call.
            replica: Returns the replica, with the state that it has at the moment.

        Raises:
            FailedPreconditionError: Another chief decides, or this is not the chief of the task.
            StratagemError: It may not call.
        """
        introduction = (await call.receive()).introduction
        require_chief(introduction, self._settings)
        chief = self._enter(introduction)
        chief.post(ArbitrateResponse(report=self._pledge.report(replica())))
        parts = [
            asyncio.ensure_future(part)
            for part in (
                self._listen(chief, call, replica),
                chief.send_all(call),
                chief.has_ended.wait(),
            )
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leave(chief)
            for part in parts:
                part.cancel()
            outcomes = await asyncio.gather(*parts, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, UnavailableError):
                raise outcome

    def _enter(self, introduction: ChiefIntroduction) -> ChiefConnection:
        present, label = self._chief, self._settings.label
        if self._is_closed:
            raise UnavailableError(f"{label} is shutting down")
        if present is not None and introduction.chief != self._pledge.chief:
            raise FailedPreconditionError(
                f"{present.name} decides which replica of {label} serves, and "
                f"{chief_name(introduction)} cannot as well; stop one of the two programs"
            )
        if present is not None:
            # It calls again because its former call has broken off.
            self._leave(present)
        self._pledge.take(introduction.chief)
        self._chief = chief = ChiefConnection(chief_name(introduction))
        self._has_come.set()
        return chief

    def _leave(self, chief: ChiefConnection) -> None:
        chief.end()
        if self._chief is chief:
            self._chief = None
            self._has_come.clear()

    async def _listen(
        self, chief: ChiefConnection, call: ChiefCall, replica: Callable[[], Replica]
    ) -> None:
        while True:
            message = await call.receive()
            # A call that another one has taken the place of is believed no more.
            if self._chief is not chief:
                return
            match message.WhichOneof("kind"):
                case "inquiry":
                    report = self._pledge.report(replica(), message.inquiry.number)
                    chief.post(ArbitrateResponse(report=report))
                case "admission":
                    self._pledge.admit(message.admission.term)
                case "delay":
                    chief.delay = message.delay.reason
                case "answer":
                    self._pledge.hear(message.answer)
                    chief.answer(message.answer)

    async def close(self) -> None:
        self._is_closed = True
        if self._chief is not None:
            self._leave(self._chief)
