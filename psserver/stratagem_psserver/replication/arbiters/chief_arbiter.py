"""The chief of the cluster as the arbiter: it calls, and is asked on its call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratagem_proto.errors import FailedPreconditionError, UnavailableError
from stratagem_proto.v1.arbitration_pb2 import (
    Answer,
    ArbitrateRequest,
    ArbitrateResponse,
    ChiefIntroduction,
)
from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_psserver.replication.arbiters.chief_checks import (
    name_of,
    require_chief,
    require_memory,
)
from stratagem_psserver.replication.arbiters.office import ChiefCall, Office
from stratagem_psserver.replication.arbiters.pledge import Pledge
from stratagem_psserver.replication.arbiters.views import require_next
from stratagem_psserver.settings import ServerSettings


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
                f"{name_of(introduction)} cannot as well; stop one of the two programs"
            )
        if present is not None:
            # It calls again because its former call has broken off.
            self._leave(present)
        self._pledge.take(introduction.chief)
        self._office = office = Office(name_of(introduction))
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
