"""The chief as the arbiter: it decides which replica of a parameter server is the primary."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError

from stratagem._ps_client.session import Identity, handshake
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.replica_addresses import replica_addresses
from stratagem_proto.v1.arbitration_pb2 import (
    DESCRIPTOR,
    Admission,
    Answer,
    ArbitrateRequest,
    ArbitrateResponse,
    ChiefIntroduction,
    Delay,
    Inquiry,
    Question,
    Report,
)
from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, Task
from stratagem_proto.wire.channel import CHANNEL_OPTIONS, Expected, open_channel
from stratagem_proto.wire.proving import prove_now
from stratagem_proto.wire.status import from_rpc_error, is_transient

# What a chief that knows nothing has to hear before it may decide. Views are replaced only for a
# replica that the present view names, or for the next process with the number of one that has
# ended. If all processes of the task take answers from this chief alone, then what any of them can
# still act upon is what they know. Processes that have ended may have acted upon a later view, but
# only if a replica of the last view that is known has asked for it, or has ended. So the chief
# waits until all replicas that this view names are there with the states that they had, and all
# that are named by what was asked for on top of it.


def latest(reports: Sequence[Report]) -> View | None:
    """Return the latest view that a replica knows; None if none knows any."""
    known = [report.known for report in reports if report.HasField("known")]
    return max(known, key=lambda view: view.epoch, default=None)


def obstacle(reports: Sequence[Report]) -> str:
    """Return why the latest view may not be the present one, and what to do; "" if it is.

    Args:
        reports: Those of all replicas of the task, all of whom take answers from this chief alone.
    """
    indices = [report.replica.index for report in reports]
    if len(set(indices)) < len(indices):
        first, other = (report.replica.address for report in reports[:2])
        return (
            f"the replicas at {first} and {other} have the same --replica {indices[0]}; stop one "
            "of the two, and start it with another number"
        )
    view = latest(reports)
    present = {report.replica.instance for report in reports}
    for replica in _concerned(view, reports):
        if replica.instance not in present:
            epoch = view.epoch if view is not None else 0
            return (
                f"the replica at {replica.address} has ended while no chief was there, and with it "
                f"what nobody else may know of the time after view {epoch}; stop all replicas of "
                "the task and start them again, from a checkpoint"
            )
    return ""


def _concerned(view: View | None, reports: Sequence[Report]) -> Iterator[Replica]:
    """Yield the replicas that may have acted upon the latest view, or upon the next one."""
    epoch = 0
    if view is not None:
        epoch = view.epoch
        yield from _named(view)
    for report in reports:
        for wanted in report.wanted:
            if wanted.epoch > epoch:
                yield from _named(wanted)


def _named(view: View) -> Iterator[Replica]:
    if view.HasField("primary"):
        yield view.primary
    if view.HasField("backup"):
        yield view.backup


class Outgoing(NamedTuple):
    """A message for a replica."""

    address: str
    message: ArbitrateRequest


@dataclass
class _Member:
    """A replica that has taken the call of this chief.

    Attributes:
        report: What it has said last.
        joined: The number of the inquiry that was sent when it came.
        is_admitted: Whether it keeps the chief in office.
        question: The last one that is not answered; None if there is none.
    """

    report: Report
    joined: int
    is_admitted: bool
    question: Question | None = None


class ViewRegister:
    """Keeps the view of a task, as long as no other chief can have come into office.

    Another one needs all replicas, so this one is in office while one that it has admitted takes
    answers from nobody else. A replica is admitted once another one, which is, has said so
    *afterwards*; or all of them at once, after all have said at the same time that they are with
    this chief, and nothing can be missing of what they know. That begins another term.

    Args:
        replicas: The addresses of all replicas of the task.

    Attributes:
        view: The present view; None before there was one, or before the first term.
        term: The number of the term; 0 before the first.
    """

    def __init__(self, replicas: Sequence[str]) -> None:
        self.view: View | None = None
        self.term = 0
        self._replicas = replicas
        self._members: dict[str, _Member] = {}
        self._inquiry = 0

    def joined(self, address: str, report: Report) -> list[Outgoing]:
        """Take a replica in whose call begins with a report; a former call of it has ended."""
        self._inquiry += 1
        stayed = report.term != 0 and report.term == self.term
        self._members[address] = _Member(report, self._inquiry, stayed)
        inquiry = ArbitrateRequest(inquiry=Inquiry(number=self._inquiry))
        return [Outgoing(each, inquiry) for each in self._members] + self._settle()

    def left(self, address: str) -> list[Outgoing]:
        self._members.pop(address, None)
        return self._settle()

    def reported(self, address: str, report: Report) -> list[Outgoing]:
        if address in self._members:
            self._members[address].report = report
        return self._settle()

    def asked(self, address: str, question: Question) -> list[Outgoing]:
        """Answer a question, now or once it is known that this chief decides."""
        member = self._members.get(address)
        if member is None:
            return []
        member.question = question
        if member.is_admitted:
            return [self._answered(address, member)]
        delay = Delay(reason=self.delay())
        return [Outgoing(address, ArbitrateRequest(delay=delay))]

    def delay(self) -> str:
        """Return what this chief waits for before it decides; "" if it decides."""
        for address in self._replicas:
            if address not in self._members:
                return f"it does not reach the replica at {address}; start it, or see why"
        for address, member in self._members.items():
            if member.report.inquiry < self._inquiry:
                return f"it waits for the replica at {address}; see that it is not suspended"
        return self.obstacle

    @property
    def obstacle(self) -> str:
        """Why it can never decide about what all replicas have told it; "" if it may."""
        is_complete = len(self._members) == len(self._replicas)
        return obstacle(self._reports) if is_complete and not self._is_in_office else ""

    @property
    def _is_in_office(self) -> bool:
        return any(member.is_admitted for member in self._members.values())

    @property
    def _reports(self) -> list[Report]:
        return [member.report for member in self._members.values()]

    def _settle(self) -> list[Outgoing]:
        """Admit whoever can be admitted now."""
        if not self._is_in_office:
            if self.delay():
                return []
            # If no process knows of any view, all begin without state, and epochs go on from here.
            self.view, self.term = latest(self._reports) or self.view, self.term + 1
            return [*self._admitted(self._members)]
        return [*self._admitted(self._vouched_for())]

    def _vouched_for(self) -> list[str]:
        """Return the replicas with which one that is admitted was since they have come."""
        heard = [m.report.inquiry for m in self._members.values() if m.is_admitted]
        return [address for address, m in self._members.items() if m.joined <= max(heard)]

    def _admitted(self, addresses: Sequence[str] | dict[str, _Member]) -> Iterator[Outgoing]:
        for address in [*addresses]:
            member = self._members[address]
            if not member.is_admitted:
                member.is_admitted = True
                admission = Admission(term=self.term)
                yield Outgoing(address, ArbitrateRequest(admission=admission))
                if member.question is not None:
                    yield self._answered(address, member)

    def _answered(self, address: str, member: _Member) -> Outgoing:
        question, member.question = member.question, None
        assert question is not None
        answer = Answer(number=question.number)
        if question.HasField("following"):
            answer.replaced = self._replace(question)
        elif self.view is not None:
            answer.view.CopyFrom(self.view)
        return Outgoing(address, ArbitrateRequest(answer=answer))

    def _replace(self, question: Question) -> bool:
        present = question.present if question.HasField("present") else None
        epoch = self.view.epoch if self.view is not None else 0
        if present != self.view or question.following.epoch != epoch + 1:
            return False
        self.view = question.following
        return True


_SERVICE = DESCRIPTOR.services_by_name["ArbitrationService"].full_name
_PATH = f"/{_SERVICE}/Arbitrate"

# Between calls of a replica that is away, and of one that refuses until somebody does something.
_PAUSE_SECONDS = 0.25
_REFUSED_PAUSES = 20

# A replica that sends no challenge in this time is called again.
_PROVING_SECONDS = 5.0


class ReplicaCaller:
    """Keeps a call to one replica open. Thread-safe.

    Attributes:
        address: The "host:port" of the replica.
    """

    def __init__(
        self, address: str, introduction: ChiefIntroduction, token: str, desk: TaskArbitration
    ) -> None:
        """Call nobody yet.

        Args:
            address: Where the replica is.
            introduction: Who calls.
            token: The secret of the cluster.
            desk: Takes what it says, in the thread of this caller.
        """
        self.address, self._token, self._desk = address, token, desk
        server = introduction.server
        self._peer = f"/job:{server.job}/task:{server.index} at {address}"
        self._introduction = introduction
        self._channel = open_channel(address, CHANNEL_OPTIONS, Expected(server.job, server.index))
        self._messages: SimpleQueue[ArbitrateRequest | None] = SimpleQueue()
        self._stopped = threading.Event()
        self._trouble = ""

    def start(self) -> None:
        """Start the thread; may be called once."""
        threading.Thread(target=self._run, name="stratagem-arbiter", daemon=True).start()

    def send(self, message: ArbitrateRequest) -> None:
        """Send a message behind all others of the present call."""
        self._messages.put(message)

    def stop(self) -> None:
        """End the call, and call no more; do not wait."""
        self._stopped.set()
        self._channel.close()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            pause = _PAUSE_SECONDS
            try:
                self._call()
            except grpc.RpcError as error:
                if _is_elsewhere(error):
                    return
                if not is_transient(error):
                    self._note(from_rpc_error(error, self._peer, "Arbitrate").message)
                    pause *= _REFUSED_PAUSES
            except DecodeError as error:
                self._note(f"{self._peer} does not speak as a replica: {error}")
                pause *= _REFUSED_PAUSES
            except ValueError:
                # The channel was closed.
                return

    def _call(self) -> None:
        messages: SimpleQueue[ArbitrateRequest | None] = SimpleQueue()
        messages.put(self._proved())
        self._messages = messages
        method: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(_PATH)
        try:
            for data in method(_until_none(messages.get)):
                self._trouble = ""
                self._desk.received(self, ArbitrateResponse.FromString(data))
        finally:
            # The thread that sends ends as well.
            messages.put(None)
            self._desk.ended(self)

    def _proved(self) -> ArbitrateRequest:
        request = ArbitrateRequest(introduction=self._introduction)
        asking = request.introduction.asking
        prove_now(self._channel, self._token, "Arbitrate", asking, _PROVING_SECONDS)
        return request

    def _note(self, trouble: str) -> None:
        """Tell people why the replica does not let this chief decide, once."""
        if trouble != self._trouble:
            _LOG.warning("cannot decide which replica serves: %s", trouble)
        self._trouble = trouble


def _is_elsewhere(error: grpc.RpcError) -> bool:
    """Return whether the replica has another arbiter."""
    call: grpc.Call = error  # type: ignore[assignment]  # RpcErrors of calls are calls
    return call.code() == grpc.StatusCode.UNIMPLEMENTED


def _until_none(
    next_message: Callable[[], ArbitrateRequest | None],
) -> Iterator[bytes]:
    while (message := next_message()) is not None:
        yield message.SerializeToString()


_LOG = logging.getLogger("stratagem")


class TaskArbitration:
    """Decides about one task while it is used, by what it has decided before. Thread-safe.

    Args:
        introduction: Who decides, and about which task.
        addresses: Those of all replicas of the task.
        token: The secret of the cluster.
    """

    def __init__(
        self, introduction: ChiefIntroduction, addresses: Sequence[str], token: str
    ) -> None:
        self._introduction, self._addresses, self._token = introduction, addresses, token
        self._register = ViewRegister(addresses)
        self._callers: dict[str, ReplicaCaller] = {}
        self._users = 0
        self._logged = 0, ""
        # Events come in the threads of all callers.
        self._deciding = threading.Lock()

    def begin(self) -> None:
        """Call the replicas, unless they are called already."""
        with self._deciding:
            self._users += 1
            if self._users > 1:
                return
            for address in self._addresses:
                caller = ReplicaCaller(address, self._introduction, self._token, self)
                self._callers[address] = caller
                caller.start()

    def end(self) -> None:
        """Call them no more, if nobody else has them called."""
        with self._deciding:
            self._users -= 1
            callers = [*self._callers.values()] if not self._users else []
            for caller in callers:
                self._register.left(caller.address)
                del self._callers[caller.address]
        for caller in callers:
            caller.stop()

    def received(self, caller: ReplicaCaller, message: ArbitrateResponse) -> None:
        with self._deciding:
            if self._callers.get(caller.address) is caller:
                self._post(self._decided(caller.address, message))
                self._log_standing()

    def _log_standing(self) -> None:
        """Tell people whether this program decides, once."""
        standing = self._register.term, self._register.obstacle
        if standing == self._logged:
            return
        server = self._introduction.server
        task = f"/job:{server.job}/task:{server.index}"
        if standing[1]:
            _LOG.warning("cannot decide which replica of %s serves: %s", task, standing[1])
        elif standing[0] != self._logged[0]:
            _LOG.info("decides which replica of %s serves", task)
        self._logged = standing

    def _decided(self, address: str, message: ArbitrateResponse) -> list[Outgoing]:
        if message.HasField("question"):
            return self._register.asked(address, message.question)
        if message.report.inquiry:
            return self._register.reported(address, message.report)
        return self._register.joined(address, message.report)

    def ended(self, caller: ReplicaCaller) -> None:
        with self._deciding:
            if self._callers.get(caller.address) is caller:
                self._post(self._register.left(caller.address))

    def _post(self, messages: Sequence[Outgoing]) -> None:
        for address, message in messages:
            self._callers[address].send(message)


class Arbitration:
    """Decides about the tasks of a group of servers, if they leave it to the chief. Thread-safe.

    What was decided is kept as long as the process lives, for all groups of the same servers.

    Args:
        addresses: The address of each server, or those of its replicas with commas between them.
        identity: Who this process is; only the chief decides.
    """

    def __init__(self, addresses: Sequence[str], identity: Identity) -> None:
        self._tasks = [
            (task, address)
            for task, address in enumerate(addresses)
            if identity.role == ROLE_CHIEF and "," in address
        ]
        self._identity = identity
        self._begun: list[TaskArbitration] = []
        self._is_stopped = not self._tasks
        self._process = os.getpid()
        self._starting = threading.Lock()

    def start(self) -> None:
        """Call all replicas, unless they are called already."""
        if self._begun or self._is_stopped:
            return
        with self._starting:
            if not self._begun and not self._is_stopped:
                found = [_arbitration_of(*task, self._identity) for task in self._tasks]
                for task in found:
                    task.begin()
                self._begun = found

    def stop(self) -> None:
        """Call them no more; a repetition does nothing, nor does a fork of the process."""
        if os.getpid() != self._process:
            return
        with self._starting:
            self._is_stopped, begun = True, self._begun
            self._begun = []
        for task in begun:
            task.end()


# By process, task, addresses and who this process is: a fork knows nothing of what its parent
# decides after it.
_ARBITRATIONS: dict[tuple[int, int, str, Identity], TaskArbitration] = {}
_FINDING = threading.Lock()


def _arbitration_of(task: int, address: str, identity: Identity) -> TaskArbitration:
    key = os.getpid(), task, address, replace(identity, client=b"", outlives_servers=False)
    with _FINDING:
        if key not in _ARBITRATIONS:
            _ARBITRATIONS[key] = new_arbitration(task, address, identity)
        return _ARBITRATIONS[key]


def new_arbitration(task: int, address: str, identity: Identity) -> TaskArbitration:
    """Return what decides about a task, and knows nothing of it yet.

    Args:
        task: Its index in the job ps.
        address: The addresses of its replicas, with commas between them.
        identity: Who decides.
    """
    addresses = replica_addresses(f"/job:ps/task:{task}", address)
    introduction = ChiefIntroduction(
        asking=handshake(identity, b""),
        chief=secrets.token_bytes(SESSION_ID_BYTES),
        server=Task(job="ps", index=task),
        replicas=len(addresses),
    )
    return TaskArbitration(introduction, addresses, identity.token)
