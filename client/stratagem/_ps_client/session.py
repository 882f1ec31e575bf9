"""The identity of this process to the servers, and its session with one of them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import grpc

from stratagem._core.waiting import uninterrupted
from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.requests.request import Request, sole
from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.proofs import credential_of
from stratagem_proto.protocol import (
    REACHED_BYTES,
    RUN_BYTES,
    SESSION_ID_BYTES,
    check_token,
    spoken,
)
from stratagem_proto.v1.parameter_server_service_pb2 import DESCRIPTOR as SERVICE_FILE
from stratagem_proto.v1.session_pb2 import (
    AttendSessionRequest,
    AwaitedAnswer,
    CloseSessionRequest,
    CloseSessionResponse,
    ClosureKey,
    CountedStep,
    FilteredTasks,
    HeartbeatRequest,
    HeartbeatResponse,
    OpenSessionRequest,
    OpenSessionResponse,
    RequestKey,
    Role,
    Scalar,
    Task,
)
from stratagem_proto.v1.waits_pb2 import Waiter
from stratagem_rpc.channel import ANY_SERVER, CHANNEL_OPTIONS, Expected, open_channel


@dataclass(frozen=True)
class Identity:
    """What a client tells each server about itself.

    `client` is random bytes that name it in all its sessions, empty if it has but one. It
    `outlives_servers` if it goes on with a server that restarts and restores a checkpoint, without
    what was applied since. `program` is the `process_name` of the process that coordinates or
    creates variables, also of workers that run its functions; `process` is that of this one.
    `filtered` are the tasks from which a server is hidden; None if that is for others to say.
    `ps_tasks` is the number of servers over which it places variables; 0 if it places none.

    Raises:
        InvalidArgumentError: The token is too short.
    """

    role: Role
    job: str = ""
    index: int = 0
    token: str = field(default="", repr=False)
    client: bytes = b""
    outlives_servers: bool = False
    program: bytes = b""
    process: bytes = b""
    filtered: FilteredTasks | None = None
    ps_tasks: int = 0

    def __post_init__(self) -> None:
        check_token(self.token)

    @property
    def name(self) -> str:
        """As in "/job:worker/task:1"."""
        return f"/job:{self.job}/task:{self.index}" if self.job else "this program"


@dataclass
class ServerSession:
    """One session with one server.

    Attributes:
        identifier: Random bytes that name it.
        credential: The same, and the proof that this process may act for it.
        incarnation: The run of the server process that it belongs to.
        lease_seconds: Silence after which the server takes this client for dead.
        reconnect_seconds: The same once nothing attends the session any more.
        max_request_bytes: Tensor bytes that one request may have, in either direction.
        sequence: The last number given to a request.
        reached: How far the server had come at its last answer, as in the message `Reached`.
    """

    identifier: bytes
    credential: bytes = field(repr=False)
    incarnation: bytes
    lease_seconds: float
    reconnect_seconds: float
    max_request_bytes: int
    sequence: int = 0
    reached: bytes = b""
    # What another process was told last, by another run, until the server was shown it.
    _heard: bytes = b""
    # Numbers of mutations whose outcome is not known.
    _open: dict[int, None] = field(default_factory=dict)
    # The last number, unless its mutation outlasts its turn.
    _in_turn: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def key(self, steps: CheckpointSteps) -> RequestKey:
        """Identify a request that changes nothing."""
        finished, report = steps.finished_step()
        shown = self.credential + self.known_reached()
        return RequestKey(session_id=shown, finished=finished, report=report)

    def next_key(
        self,
        steps: CheckpointSteps,
        closure: ClosureKey | None = None,
        counted: CountedStep | None = None,
    ) -> RequestKey:
        """Number the next mutation; the caller holds the lock of mutations.

        The outcome of the one before is known by then, unless it was `pipelined`; the keys after it
        say so for ever.
        """
        with self._counting:
            self._open.pop(self._in_turn, None)
            self._in_turn = self.sequence = sequence = self.sequence + 1
            self._open[sequence] = None
            acknowledged = next(iter(self._open)) - 1
        step, (finished, report) = steps.current_and_finished()
        return RequestKey(
            session_id=self.credential + self.reached + self._heard,
            sequence=sequence,
            acknowledged=acknowledged,
            step=step,
            finished=finished,
            report=report,
            closure=closure,
            counted=counted,
        )

    def pipelined(self) -> None:
        """Let the last mutation outlast its turn, until `note_outcome`."""
        self._in_turn = 0

    def note_outcome(self, sequence: int) -> None:
        """Note that a pipelined mutation will not be sent any more."""
        with self._counting:
            self._open.pop(sequence, None)

    @property
    def acknowledged(self) -> int:
        """The number up to which the outcomes of all mutations are known."""
        with self._counting:
            return next(iter(self._open), self.sequence + 1) - 1

    def note_reached(self, reached: bytes, shown: bytes) -> None:
        """Note how far the server had come when it answered; answers may overtake each other.

        Args:
            reached: As in the message `Reached`.
            shown: What the request has shown.
        """
        if reached[:RUN_BYTES] != self.reached[:RUN_BYTES] or reached > self.reached:
            self.reached = reached
        if self._heard and shown.endswith(self._heard):
            self._heard = b""

    def note_heard(self, reached: bytes) -> None:
        """Note how far the server had come when it answered another process."""
        if len(reached) != REACHED_BYTES:
            return
        if not self.reached or reached[:RUN_BYTES] == self.reached[:RUN_BYTES]:
            self.reached = max(self.reached, reached)
        else:
            # Which of both is later is for the server to say.
            self._heard = reached

    def known_reached(self) -> bytes:
        """Return how far the server had come, by its own answers and by what was heard of it."""
        return self.reached + self._heard

    def is_forgotten(self, answer: OpenSessionResponse) -> bool:
        """Return whether the same run of the server does not know the session any more."""
        forgotten = answer.last_sequence == 0 and self.acknowledged > 0
        return answer.incarnation == self.incarnation and forgotten

    def continues(self, answer: OpenSessionResponse) -> None:
        """Go on with the run of the server that has opened the session again.

        If it is another one, it has restored a checkpoint. The numbers that it does not know are
        below the next one's `acknowledged`.
        """
        if answer.incarnation != self.incarnation:
            self.incarnation, self.reached, self._heard = answer.incarnation, b"", b""


def opening(
    identity: Identity, session: ServerSession | None = None, run: bytes = b""
) -> Request[OpenSessionResponse]:
    """Return the handshake of a new session, or of one that the server may have ended.

    The server opens it only if it is the run that the handshake names, which is that of the
    session, or the given one. Another run says in its answer which one it is; see `reopening`.
    """
    identifier = session.identifier if session else secrets.token_bytes(SESSION_ID_BYTES)
    message = handshake(identity, identifier)
    message.incarnation = session.incarnation if session else run
    message.reached = session.known_reached() if session else b""
    return Request("OpenSession", message, sole(OpenSessionResponse))


def reopening(
    request: Request[OpenSessionResponse], answer: OpenSessionResponse
) -> Request[OpenSessionResponse] | None:
    """Return the handshake with the run that has answered; None if that has opened the session."""
    message = OpenSessionRequest.FromString(request.message.SerializeToString())
    if message.incarnation == answer.incarnation:
        return None
    message.incarnation, message.reached = answer.incarnation, b""
    return Request("OpenSession", message, sole(OpenSessionResponse))


def heartbeat(
    session: ServerSession,
    steps: CheckpointSteps,
    doing: str,
    awaited: Iterable[AwaitedAnswer],
    waits: Iterable[Waiter],
) -> Request[HeartbeatResponse]:
    """Return what renews the lease of a session, and tells of its steps.

    Args:
        session: The session.
        steps: The steps of this process.
        doing: Where the program is, if it has made no request since the last heartbeat.
        awaited: The answers that the program waits for.
        waits: What it waits for of other tasks.
    """
    finished, report = steps.finished_step()
    latest = steps.scalars.latest()
    message = HeartbeatRequest(
        session_id=session.credential,
        finished=finished,
        report=report,
        doing=doing,
        awaited=awaited,
        waits=waits,
        pace=steps.pace.message(),
        scalars=[Scalar(name=name, value=value) for name, value in latest.items()],
    )
    return Request("Heartbeat", message, sole(HeartbeatResponse))


def farewell(session: ServerSession) -> Request[CloseSessionResponse]:
    """Return what ends a session."""
    message = CloseSessionRequest(session_id=session.credential)
    return Request("CloseSession", message, sole(CloseSessionResponse))


def handshake(identity: Identity, identifier: bytes) -> OpenSessionRequest:
    """Return what opens the session of that identifier, with a server of any kind."""
    return OpenSessionRequest(
        **spoken(),
        session_id=identifier,
        role=identity.role,
        task=Task(job=identity.job, index=identity.index),
        client=identity.client,
        program=identity.program,
        process=identity.process,
        filtered=identity.filtered,
        ps_tasks=identity.ps_tasks,
    )


def opened(
    request: Request[OpenSessionResponse], answer: OpenSessionResponse, server: str, token: str
) -> ServerSession:
    """Return the session that a handshake gave; raise as `check_answering`."""
    check_answering(answer.task, server)
    return ServerSession(
        request.session_id,
        request.session_id + credential_of(request.session_id, token),
        answer.incarnation,
        answer.lease_seconds,
        answer.reconnect_seconds,
        answer.max_request_bytes,
    )


def check_answering(answering: Task, server: str) -> None:
    """Check that a server, given by task and address, is the one that was called.

    Raises:
        FailedPreconditionError: It is another one.
    """
    task = f"/job:{answering.job}/task:{answering.index}"
    if not server.startswith(f"{task} "):
        job = server.split("/")[1].removeprefix("job:")
        raise FailedPreconditionError(
            f"the cluster has {server}, but {task} answers there; correct the "
            f"addresses of the {job} job",
            task=task,
        )


_SERVICE = SERVICE_FILE.services_by_name["ParameterServerService"].full_name
_PATH = f"/{_SERVICE}/AttendSession"

# Between attempts at a server that is away.
_PAUSE_SECONDS = 0.5


class LivenessCall:
    """Keeps a call of `AttendSession` open, of one session at a time. Thread-safe.

    The system closes the connections of a process that ends, however it ends, so that the server
    sees the end of the call. It has a channel to itself: a thread of gRPC's looks after it, which
    would come in between the calls of others.
    """

    def __init__(self) -> None:
        self._channel: grpc.Channel | None = None
        self._call: grpc.Future[bytes] | None = None
        self._place = "", ANY_SERVER, b""
        self._again_at = 0.0
        self._closed = False
        self._changing = threading.Lock()

    def hold(self, address: str, expected: Expected, session_id: bytes) -> bool:
        """Call the server unless a call is under way; do not wait. Return whether one was.

        Args:
            address: Where it is.
            expected: Who has to be there.
            session_id: The session's `credential`.
        """
        with uninterrupted(), self._changing:
            place = address, expected, session_id
            goes_on = self._call is not None and not self._call.done()
            if self._closed or (goes_on and place == self._place):
                return True
            if place == self._place and time.monotonic() < self._again_at:
                return False
            self._place, self._again_at = place, time.monotonic() + _PAUSE_SECONDS
            if self._channel is not None:
                self._channel.close()
            self._channel = open_channel(address, CHANNEL_OPTIONS, expected)
            method: grpc.UnaryUnaryMultiCallable[bytes, bytes]
            method = self._channel.unary_unary(_PATH)
            request = AttendSessionRequest(session_id=session_id)
            self._call = method.future(request.SerializeToString(), wait_for_ready=False)
            return False

    def close(self) -> None:
        """End the call; none can be begun any more."""
        with uninterrupted(), self._changing:
            self._closed = True
            if self._channel is not None:
                self._channel.close()
