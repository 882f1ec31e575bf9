"""A task with two replicas and two chiefs, all of which may end, be late or be cut off.

Both ends are the real ones, `ViewRegister` and `Pledge`; what a replica does with a view is
`next_move`. A step of the model delivers one message, or lets one part do one thing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from stratagem._ps_client.arbitration import Outgoing, ViewRegister
from stratagem_proto.v1.arbitration_pb2 import Answer, ArbitrateRequest, ArbitrateResponse
from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_psserver.replication.chief_arbiter import Pledge
from stratagem_psserver.replication.views import (
    Lead,
    Propose,
    alone,
    handed_over,
    is_backup,
    is_primary,
    next_move,
    with_backup,
)

ADDRESSES = ("host-0:1", "host-1:1")


@dataclass
class State:
    """What a process holds of one lineage: so many changes that were acknowledged."""

    lineage: int
    count: int


@dataclass(eq=False)
class Call:
    """A call of a chief to a replica. Each end learns by itself that it is over."""

    chief: Chief
    to_replica: deque[ArbitrateRequest] = field(default_factory=deque)
    to_chief: deque[ArbitrateResponse] = field(default_factory=deque)
    is_heard: bool = False
    is_over: bool = False


class Chief:
    """A chief, and the calls that it takes for alive."""

    def __init__(self, number: int) -> None:
        self.number = number.to_bytes(16, "big")
        self.register = ViewRegister(ADDRESSES)
        self.calls: dict[int, Call] = {}

    def post(self, messages: list[Outgoing]) -> None:
        for address, message in messages:
            self.calls[ADDRESSES.index(address)].to_replica.append(message)

    def hear(self, index: int) -> None:
        """Take the next message of a replica, or note that the call is over."""
        call = self.calls.get(index)
        if call is None:
            return
        if not call.to_chief:
            if call.is_over:
                del self.calls[index]
                self.post(self.register.left(ADDRESSES[index]))
            return
        message, address = call.to_chief.popleft(), ADDRESSES[index]
        if message.HasField("question"):
            self.post(self.register.asked(address, message.question))
        elif message.report.inquiry:
            self.post(self.register.reported(address, message.report))
        else:
            self.post(self.register.joined(address, message.report))


class Process:
    """A process with the number of a replica, and whatever it is at the moment."""

    def __init__(self, index: int, run: int) -> None:
        self.index, self.run, self.states = index, run, 0
        self.pledge = Pledge()
        self.call: Call | None = None
        self.state: State | None = None
        self.follows = b""
        # What waits for an answer: the number of the question, and what it is asked for.
        self.asking: tuple[int, str] | None = None
        self.lead: View | None = None
        self.proposed: View | None = None
        self.required, self.is_fenced = b"", False

    @property
    def me(self) -> Replica:
        instance = f"{self.index}.{self.run}.{self.states}".encode()
        return Replica(index=self.index, instance=instance, address=ADDRESSES[self.index])

    def renew(self) -> None:
        """Drop the state, and be another replica from now on."""
        self.states += 1
        self.state, self.lead, self.proposed = None, None, None
        self.required, self.is_fenced, self.follows = b"", False, b""


class World:
    """All of it, and what must never happen."""

    def __init__(self) -> None:
        self.chiefs = [Chief(1), Chief(2)]
        self.numbers = 2
        self.processes = [Process(0, 1), Process(1, 1)]
        self.lineages = 0
        self.acknowledged: dict[int, int] = {}
        self.told: dict[int, View] = {}
        self.last_epoch = 0

    # Chiefs.

    def restart_chief(self, which: int) -> None:
        self.numbers += 1
        for call in self.chiefs[which].calls.values():
            call.is_over = True
        self.chiefs[which] = Chief(self.numbers)

    def dial(self, which: int, index: int) -> None:
        """Have a chief call a replica that it has no call to; the replica may refuse it."""
        chief, process = self.chiefs[which], self.processes[index]
        present = process.call
        if index in chief.calls or (present is not None and present.chief is not chief):
            return
        if present is not None:
            present.is_over = True
        process.pledge.take(chief.number)
        call = chief.calls[index] = process.call = Call(chief)
        report = process.pledge.report(process.me)
        call.to_chief.append(ArbitrateResponse(report=report))

    def cut(self, index: int) -> None:
        """Have a replica lose the call of its chief, which does not know yet."""
        process = self.processes[index]
        if process.call is not None:
            process.call.is_over = True
            process.call = None

    # Replicas.

    def restart(self, index: int) -> None:
        self.cut(index)
        self.processes[index] = Process(index, self.processes[index].run + 1)
        if all(process.pledge.known is None for process in self.processes):
            # Nothing is left, and all begin anew.
            self.told, self.last_epoch = {}, 0

    def other(self, process: Process) -> Process:
        return self.processes[1 - process.index]

    def ask(self, process: Process, purpose: str, *views: View | None) -> None:
        """Ask the chief that has called, if one has."""
        if process.call is None:
            return
        question = process.pledge.ask(*views)
        process.asking = question.number, purpose
        process.call.to_chief.append(ArbitrateResponse(question=question))

    def listen(self, index: int) -> None:
        """Take the next message of the chief."""
        process = self.processes[index]
        call = process.call
        if call is None or not call.to_replica:
            return
        message = call.to_replica.popleft()
        if message.HasField("inquiry"):
            report = process.pledge.report(process.me, message.inquiry.number)
            call.to_chief.append(ArbitrateResponse(report=report))
        elif message.HasField("admission"):
            process.pledge.admit(message.admission.term)
        elif message.HasField("answer"):
            process.pledge.hear(message.answer)
            self.check_told(process)
            if process.asking is not None and process.asking[0] == message.answer.number:
                purpose, process.asking = process.asking[1], None
                self.answered(process, purpose, message.answer)

    def give_up(self, index: int) -> None:
        """Have a replica wait no more; it asks again."""
        self.processes[index].asking = None

    def answered(self, process: Process, purpose: str, answer: Answer) -> None:
        view = answer.view if answer.HasField("view") else None
        match purpose:
            case "part":
                self.take_part(process, view)
            case "takeover" if view is not None and is_backup(view, process.me):
                self.ask(process, "granted", view, alone(view, process.me))
            case "proposed" if answer.replaced:
                self.go_on(process)
            case "proposed":
                self.ask(process, "check")
            case "check" if view == process.proposed:
                self.go_on(process)
            case "check":
                process.renew()
            case "confirm" if view is None or not is_primary(view, process.me):
                process.renew()

    def take_part(self, process: Process, view: View | None) -> None:
        match next_move(view, process.me):
            case Propose(present, following):
                self.ask(process, "granted", present, following)
            case Lead(present):
                self.begin(process, present)
            case _:
                self.follow(process, view)

    def begin(self, process: Process, view: View) -> None:
        if process.state is None:
            assert not self.is_kept_elsewhere(process), "begins anew beside a complete state"
            self.lineages += 1
            process.state = State(self.lineages, 0)
        process.lead, process.follows = view, b""
        self.check_lead(process)

    def is_kept_elsewhere(self, process: Process) -> bool:
        other = self.other(process)
        last = self.told[max(self.told)] if self.told else View()
        named = is_backup(last, other.me) or is_primary(last, other.me)
        return named and other.state is not None and other.state.count > 0

    def follow(self, process: Process, view: View | None) -> None:
        other = self.other(process)
        if view is not None and other.lead is not None and is_primary(view, other.me):
            process.follows = other.me.instance

    def go_on(self, process: Process) -> None:
        """Lead in the view that was proposed."""
        view = process.lead = process.proposed
        process.proposed = None
        assert view is not None
        if not is_primary(view, process.me):
            process.renew()
        elif not view.HasField("backup"):
            process.required = b""

    # What a replica does by itself.

    def move(self, index: int) -> None:
        process = self.processes[index]
        if process.asking is not None:
            return
        if process.proposed is not None:
            self.ask(process, "proposed", process.lead, process.proposed)
        elif process.lead is None:
            self.ask(process, "part")
        else:
            self.ask(process, "confirm")

    def take_over(self, index: int) -> None:
        """Have a backup hear nothing of its primary any more."""
        process = self.processes[index]
        if process.lead is None:
            process.follows = b""
            self.ask(process, "takeover")

    def take_on(self, index: int) -> None:
        process = self.processes[index]
        other, view = self.other(process), process.lead
        if view is None or process.proposed is not None or view.HasField("backup"):
            return
        if other.follows == process.me.instance and process.state is not None:
            other.state = State(process.state.lineage, process.state.count)
            process.required = other.me.instance
            process.proposed = with_backup(view, other.me)
            self.move(index)

    def go_on_alone(self, index: int) -> None:
        process = self.processes[index]
        if (
            process.lead is not None
            and process.proposed is None
            and process.lead.HasField("backup")
        ):
            process.proposed = alone(process.lead, process.me)
            self.move(index)

    def hand_over(self, index: int) -> None:
        process = self.processes[index]
        if process.lead is not None and process.proposed is None and self.has_backup(process):
            process.is_fenced = True
            process.proposed = handed_over(process.lead)
            self.move(index)

    def has_backup(self, process: Process) -> bool:
        """Return whether the required backup acknowledges what it is sent."""
        other = self.other(process)
        is_required = process.required == other.me.instance
        return is_required and other.follows == process.me.instance and other.lead is None

    def write(self, index: int) -> None:
        """Have a client change something, which is acknowledged if it may be."""
        process = self.processes[index]
        if process.lead is None or process.state is None or process.is_fenced:
            return
        if process.required:
            other = self.other(process).state
            if not self.has_backup(process) or other is None:
                return
            other.count += 1
        elif process.lead.HasField("backup"):
            return
        process.state.count += 1
        self.check_acknowledged(process.lead, process.state)

    # What must hold.

    def check_told(self, process: Process) -> None:
        """No two views of an epoch are known to replicas that they name."""
        view = process.pledge.known
        if view is not None and (is_primary(view, process.me) or is_backup(view, process.me)):
            assert self.told.setdefault(view.epoch, view) == view, "two views of an epoch"

    def check_lead(self, process: Process) -> None:
        """Whoever leads has all that was acknowledged of its lineage."""
        state = process.state
        assert state is not None
        assert state.count == self.acknowledged.get(state.lineage, 0), "leads without changes"

    def check_acknowledged(self, view: View, state: State) -> None:
        """A former primary acknowledges nothing."""
        assert view.epoch >= self.last_epoch, "a former primary acknowledges"
        self.last_epoch = view.epoch
        acknowledged = self.acknowledged.get(state.lineage, 0) + 1
        assert state.count == acknowledged, "changes were lost"
        self.acknowledged[state.lineage] = acknowledged

    def rounds(self, which: int, count: int = 4) -> None:
        """Let one chief and all replicas do their part, so many times."""
        for _ in range(count):
            for index in range(2):
                self.dial(which, index)
            for _ in self.messages():
                for index in range(2):
                    self.chiefs[which].hear(index)
                    self.listen(index)
            for index in range(2):
                if self.processes[index].lead is None:
                    self.move(index)

    def messages(self) -> Iterator[int]:
        yield from range(8)
