"""The connection of a simulated process to one server.

It numbers requests by the client's own `ServerSession`, repeats them as the client's `Retries`
decides, and encodes and decodes them by the client's own `Request`. What stands here instead of
`Connection` and `Pending` is their waiting: a lock of asyncio where those have one of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from typing import Any

import grpc
import torch

from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.names import next_closure_key
from stratagem._ps_client.pending import Retries, SurvivedRequests, is_unreached
from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.route import restarted_error
from stratagem._ps_client.session import (
    Identity,
    ServerSession,
    heartbeat,
    opened,
    opening,
    reopening,
)
from stratagem._ps_client.transport import Responses
from stratagem_proto.errors import SessionLostError, StratagemError
from stratagem_proto.v1.session_pb2 import (
    ROLE_WORKER,
    AttendSessionRequest,
    OpenSessionResponse,
    RequestKey,
)
from stratagem_proto.wire.status import from_rpc_error
from stratagem_rpc.channel import Deadlines
from tests.simulation.network import Sent
from tests.simulation.route import Route
from tests.simulation.servers import SimulatedServer
from tests.simulation.shared_segment import SharedSegment
from tests.simulation.world import World

DEADLINES = Deadlines(call=4.0, connect=20.0)
_ATTEND = "/stratagem_proto.v1.ParameterServerService/AttendSession"


class Pauses:
    """The pauses of one process, in which none of its code runs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._until = 0.0
        self.total = 0.0

    def pause(self, seconds: float) -> None:
        """Let the process stand still for a while from now on."""
        self._until = self._world.loop.time() + seconds
        self.total += seconds

    @property
    def left(self) -> float:
        """For how many seconds the process still stands; not above 0 if it runs."""
        return self._until - self._world.loop.time()

    async def over(self) -> None:
        """Wait until the process runs."""
        while (left := self.left) > 0:
            await asyncio.sleep(left)


class SimulatedConnection:
    """As `stratagem._ps_client.connection.Connection`, without threads.

    Args:
        world: The run that it is part of.
        route: Carries its calls.
        task: The index of the server's task.
        identity: Who the process is.
        steps: The steps of the process.
        pauses: Its pauses.

    Attributes:
        name: The process in the trace.
        peer: The server in messages.
        session: The session with it; None while there is none.
        losses: How often the server has ended it.
    """

    def __init__(
        self,
        world: World,
        route: Route,
        task: int,
        identity: Identity,
        steps: CheckpointSteps,
        pauses: Pauses,
    ) -> None:
        self._world, self._route = world, route
        self._identity, self._steps, self._pauses = identity, steps, pauses
        self.name = identity.name.replace("/job:", "").replace("/task:", ":")
        self.peer = f"/job:ps/task:{task} at ps:{task}"
        self.session: ServerSession | None = None
        self.losses = 0
        self._lost = ""
        # How often tensors go through memory: never between hosts.
        self._shares = self._world.chance.choice((0.0, 0.5, 1.0))
        self._turn, self._opening = asyncio.Lock(), asyncio.Lock()
        self._attendance: asyncio.Task[Any] | None = None
        self._attended: SimulatedServer | None = None
        self._experience = SurvivedRequests()

    async def call(self, request: Request[Result]) -> Result:
        """Send a request and wait for its result; mutations go one at a time."""
        if not request.mutates:
            session = await self.open()
            request.stamp(session.key(self._steps))
            return await self._repeated(request, DEADLINES)
        async with self._turn:
            session = await self.open()
            request.stamp(self._next_key(session, request))
            return await self._repeated(request, DEADLINES)

    def _next_key(self, session: ServerSession, request: Request[Any]) -> RequestKey:
        counted = self._steps.counted(self.peer, request)
        return session.next_key(self._steps, next_closure_key(self.peer), counted)

    async def pipeline(self, request: Request[Result]) -> asyncio.Task[Result]:
        """Send a mutation; others may follow before its result is there."""
        async with self._turn:
            session = await self.open()
            key = self._next_key(session, request)
            request.stamp(key)
            session.pipelined()

        async def outcome() -> Result:
            try:
                return await self._repeated(request, DEADLINES)
            finally:
                session.note_outcome(key.sequence)

        return self._world.loop.create_task(outcome())

    async def open(self) -> ServerSession:
        """Return the session, after the handshake if there is none."""
        self._require_usable()
        async with self._opening:
            if self.session is None:
                request = opening(self._identity)
                self._choose_session_id(request)
                answer = await self._opened_by(request, knows_run=False)
                self.session = opened(request, answer, self.peer, "")
                self._attend()
            return self.session

    def _choose_session_id(self, request: Request[OpenSessionResponse]) -> None:
        message: Any = request.message
        message.session_id = self._world.chance.randbytes(16)

    async def _repeated(self, request: Request[Result], deadlines: Deadlines) -> Result:
        await self._pauses.over()
        began, paused = self._world.loop.time(), self._pauses.total
        try:
            return await self._repeating(request, deadlines)
        finally:
            took = self._world.loop.time() - began - (self._pauses.total - paused)
            self._world.require(
                took <= _longest(request, deadlines),
                f"{request.method} of {self.name} took {took:.1f} s, which is past its deadline",
            )

    async def _repeating(self, request: Request[Result], deadlines: Deadlines) -> Result:
        route = self._route
        repetition = Retries(request, self.peer, deadlines.connect, route.is_replicated)
        while True:
            run, server = self._present_run, route.server
            try:
                return await self._attempted(request, deadlines)
            except StratagemError as error:
                if isinstance(error, SessionLostError) and not request.opens:
                    await self._resume()
                else:
                    # A server that was left may live on.
                    ended = run if server is route.server else None
                    repetition.require_passing(error, ended, has_room=True)
                await self._wait_for_server(repetition, request, deadlines, server, error)
            await self._pauses.over()
            if request.mutates and self.session is not None:
                repetition.require_harmless(self._present_run)
                request.acknowledge(self.session.acknowledged)

    async def _wait_for_server(
        self,
        repetition: Retries,
        request: Request[Any],
        deadlines: Deadlines,
        server: SimulatedServer,
        error: StratagemError,
    ) -> None:
        """Return once it makes sense to send a request again, as `Pending` decides."""
        is_found = False
        while not is_found:
            is_found = await self._is_found(repetition, request, deadlines, server, error)
            await asyncio.sleep(repetition.pause(error, self._world.loop.time()))

    async def _is_found(
        self,
        repetition: Retries,
        request: Request[Any],
        deadlines: Deadlines,
        server: SimulatedServer,
        error: StratagemError,
    ) -> bool:
        route = self._route
        if not route.is_replicated or not is_unreached(error) or not deadlines.connect:
            return True
        found = await route.find(server, error)
        repetition.is_held_back = (
            found
            and not route.has_backup
            and repetition.is_suspect(self._present_run)
            and not self._experience.covers(request)
        )
        return found and not repetition.is_held_back

    @property
    def _present_run(self) -> Hashable:
        return self.run, self._route.takeovers

    @property
    def run(self) -> bytes:
        """The run of the server that the session is with; empty for none."""
        return self.session.incarnation if self.session else b""

    async def _attempted(self, request: Request[Result], deadlines: Deadlines) -> Result:
        await self._pauses.over()
        segment = self._shared(request.least_room)
        messages = [bytes(message) for message in request.encoded(segment)]
        sent = Sent(request.path, messages, segment)
        timeout = deadlines.attempt(request.request_nbytes, request.wait)
        try:
            answer = await self._route.call(sent, timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.peer, request.method) from error
        finally:
            await self._pauses.over()
        responses = Responses(iter(answer), segment)
        result = request.receive(responses)
        if self.session is not None and responses.reached:
            self.session.note_reached(responses.reached, request.session_id)
        if request.mutates and self._route.is_replicated:
            self._experience.note(request)
        return result

    def _shared(self, nbytes: int) -> SharedSegment | None:
        """Return memory that this process shares with the server for one attempt, if any."""
        if not nbytes or self._world.chance.random() >= self._shares:
            return None
        return SharedSegment(torch.zeros(nbytes, dtype=torch.uint8).numpy().data)

    async def _resume(self) -> None:
        session = self.session
        if session is not None:
            self.losses += 1
            try:
                answer = await self._opened_by(opening(self._identity, session), knows_run=True)
            except SessionLostError as error:
                self._lost = error.message
                raise
            if session.is_forgotten(answer):
                self._require_restored(answer)
            session.continues(answer)
            self._attend()
        self._require_usable()

    async def _opened_by(
        self, request: Request[OpenSessionResponse], knows_run: bool
    ) -> OpenSessionResponse:
        answer = await self._repeated(request, DEADLINES)
        while (again := reopening(request, answer)) is not None:
            if knows_run:
                self._require_restored(answer)
            request, answer = again, await self._repeated(again, DEADLINES)
        return answer

    def _require_restored(self, answer: OpenSessionResponse) -> None:
        if not (answer.restored and self._identity.outlives_servers):
            self._lost = restarted_error(self.peer).message
        self._require_usable()

    def _require_usable(self) -> None:
        if self._lost:
            raise SessionLostError(self._lost)

    def _attend(self) -> None:
        """Have the server see that this process lives, by a call that lasts as long as it."""
        if self.session is None or self._attends_present():
            return
        request = AttendSessionRequest(session_id=self.session.credential)
        sent = Sent(_ATTEND, [request.SerializeToString()])
        self.close()
        self._attended = self._route.server
        self._attendance = self._world.loop.create_task(self._route.call(sent, None))
        self._attendance.add_done_callback(_forget_outcome)

    def _attends_present(self) -> bool:
        is_under_way = self._attendance is not None and not self._attendance.done()
        return is_under_way and self._attended is self._route.server

    async def beat(self) -> None:
        """Renew the lease of the session, as the client's heartbeat does."""
        if self.session is None or self._lost:
            return
        self._attend()
        patience = min(self.session.lease_seconds, 2 * self.session.reconnect_seconds) / 3
        request = heartbeat(self.session, self._steps, "", (), ())
        await self._repeated(request, replace(DEADLINES, call=patience, connect=0.0))

    def close(self) -> None:
        """End what the process has under way; the system closes its connections."""
        if self._attendance is not None:
            self._attendance.cancel()


def _longest(request: Request[Any], deadlines: Deadlines) -> float:
    """Return how long a request may take: repetitions end some time after the first failure."""
    attempt = deadlines.attempt(request.request_nbytes, request.wait) + 1.0
    # The handshakes before the first repetition, and before the last.
    handshakes = 0.0 if request.opens else 2 * _longest_handshake()
    return attempt + deadlines.connect + attempt + handshakes


@cache
def _longest_handshake() -> float:
    return _longest(opening(Identity(ROLE_WORKER)), DEADLINES)


def _forget_outcome(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
