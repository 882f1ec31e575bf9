"""The chief of the cluster as the arbiter: it calls, and is asked on its call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Protocol

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
from stratagem_psserver.settings import ServerSettings


def chief_name(introduction: ChiefIntroduction) -> str:
    """Return what a chief is called in messages, which tell two programs apart."""
    task, number = introduction.asking.task, introduction.chief.hex()[:8]
    return f"/job:{task.job}/task:{task.index} (chief {number})"


def require_memory(settings: ServerSettings) -> None:
    """Check that no replica comes back with a state of views that nobody knows any more.

    Raises:
        InvalidArgumentError: It would, from its disk.
    """
    if settings.durability != "none":
        raise InvalidArgumentError(
            "--arbiter chief keeps in the chief's memory which replica serves, but the replicas of "
            f"{settings.label} would have their state on disk: once all programs have ended, "
            "nobody would know which of the states is the last. Give another arbiter, or "
            "--durability none"
        )


def require_chief(introduction: ChiefIntroduction, settings: ServerSettings) -> None:
    """Check that whoever calls may decide which replica of a task serves.

    Raises:
        InvalidArgumentError: It does not say who it is.
        FailedPreconditionError: It is not of a cluster with these replicas.
    """
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
        """Return what the chief has to know before it decides.

        Args:
            replica: The state that the process has at present.
            inquiry: The number of the inquiry that this answers; 0 for none.
        """
        wanted = self._wanted.values()
        return Report(
            inquiry=inquiry, replica=replica, known=self.known, wanted=wanted, term=self._term
        )


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


class ChiefArbiter:
    """Asks the chief that has called.

    Args:
        settings: Those of a replica of the task.
        seconds: After so many seconds a call has ended, whatever the chief does.

    Raises:
        InvalidArgumentError: The replicas keep their state longer than a chief keeps views.
    """

    def __init__(self, settings: ServerSettings, seconds: float = 1.0) -> None:
        require_memory(settings)
        self._settings, self._seconds = settings, seconds
        self._pledge = Pledge()
        self._office: Office | None = None
        self._has_come = asyncio.Event()
        self._is_closed = False

    async def read(self) -> View | None:
        """Return the present view; None before there was one.

        Raises:
            UnavailableError: No chief answers in time.
        """
        answer = await self._in_time()
        return answer.view if answer.HasField("view") else None

    async def replace(self, present: View | None, following: View) -> bool:
        """Replace the view that is expected to be the present one; return whether it was.

        Raises:
            UnavailableError: No chief answers in time. The view may have been replaced, or be
                replaced later.
            InternalError: The view does not have the next epoch.
        """
        require_next(present, following)
        return (await self._in_time(present, following)).replaced

    async def _in_time(self, present: View | None = None, following: View | None = None) -> Answer:
        asking = asyncio.ensure_future(self._ask(present, following))
        try:
            await asyncio.wait([asking], timeout=self._seconds)
            if asking.done():
                return asking.result()
            raise UnavailableError(self._reason())
        finally:
            asking.cancel()

    async def _ask(self, present: View | None, following: View | None) -> Answer:
        while (office := self._office) is None:
            await self._has_come.wait()
        question = self._pledge.ask(present, following)
        answering = office.expect(question.number)
        office.post(ArbitrateResponse(question=question))
        try:
            return await answering
        finally:
            office.forget(question.number)

    def _reason(self) -> str:
        label = self._settings.label
        if self._office is None:
            return (
                f"no chief has called {label}, whose replicas leave it to the chief which of them "
                "serves; start the program of the chief, with the addresses of all replicas of "
                f"{label} in its cluster"
            )
        reason = self._office.delay or "see that it is not suspended"
        return f"{self._office.name} has not answered {label} within {self._seconds:g} s: {reason}"

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
        office = self._enter(introduction)
        office.post(ArbitrateResponse(report=self._pledge.report(replica())))
        listening = asyncio.ensure_future(self._listen(office, call, replica))
        others = [
            asyncio.ensure_future(part) for part in (office.send_all(call), office.until_end())
        ]
        try:
            await asyncio.wait([listening, *others], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leave(office)
            for part in (listening, *others):
                part.cancel()
            outcomes = await asyncio.gather(listening, *others, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, UnavailableError):
                raise outcome

    def _enter(self, introduction: ChiefIntroduction) -> Office:
        present, label = self._office, self._settings.label
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
        self._office = office = Office(chief_name(introduction))
        self._has_come.set()
        return office

    def _leave(self, office: Office) -> None:
        office.end()
        if self._office is office:
            self._office = None
            self._has_come.clear()

    async def _listen(
        self, office: Office, call: ChiefCall, replica: Callable[[], Replica]
    ) -> None:
        while True:
            message = await call.receive()
            # A call that another one has taken the place of is believed no more.
            if self._office is not office:
                return
            self._hear(office, message, replica)

    def _hear(
        self, office: Office, message: ArbitrateRequest, replica: Callable[[], Replica]
    ) -> None:
        match message.WhichOneof("kind"):
            case "inquiry":
                report = self._pledge.report(replica(), message.inquiry.number)
                office.post(ArbitrateResponse(report=report))
            case "admission":
                self._pledge.admit(message.admission.term)
            case "delay":
                office.delay = message.delay.reason
            case "answer":
                self._pledge.hear(message.answer)
                office.answer(message.answer)

    async def close(self) -> None:
        """End the call of the chief; a repetition does nothing."""
        self._is_closed = True
        if self._office is not None:
            self._leave(self._office)
