"""All parameter servers of a cluster."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol
from weakref import WeakMethod

from stratagem._cluster.device_filters import VisibleServers
from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.heartbeat import Heartbeat
from stratagem._ps_client.pending import Pending
from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.route import TaskDirectory
from stratagem._ps_client.session import Identity
from stratagem._ps_client.transport import Traffic
from stratagem._ps_client.write_behind import Backlog, present_writes
from stratagem_proto.errors import FailedPreconditionError, StratagemError
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_rpc.channel import Deadlines

# Larger writes are waited for: there is more to gain by sending them well.
_MOST_BEHIND_BYTES = 16 << 10


class Order(Enum):
    """What requests of a group wait for, and what is made of them.

    Attributes:
        AFTER_PUSH: They follow a push in flight, whose answer is taken in before. Those that change
            something are one step of the client, and count as a change.
        BESIDE_PUSH: The same, but what changes nothing does not wait for a push in flight.
        STEP: A part of a training step. It follows a push in flight, whose answer others take in.
        IN_FLIGHT: The push in flight itself, a part of a training step that waits for no other.
        BEHIND: As AFTER_PUSH, but a scheduled function does not wait for small ones, and gets no
            results of them. They go at once, in their order, and all else waits for them.
    """

    AFTER_PUSH = "after push"
    BESIDE_PUSH = "beside push"
    STEP = "step"
    IN_FLIGHT = "in flight"
    BEHIND = "behind"


class InFlightPush(Protocol):
    """A push whose answer nobody has waited for yet; other requests of its group do."""

    def wait(self) -> None:
        """Wait until it is answered; raise nothing. Comes before a part of a step."""

    def finish(self) -> None:
        """Wait until it is answered, and take the answer in; comes before all else.

        A failure is raised by one call only.
        """

    def wait_in_background(self) -> None:
        """Have a thread wait for the answer; called when no step begins soon."""


class _NoPush(InFlightPush):
    def wait(self) -> None: ...

    def finish(self) -> None: ...

    def wait_in_background(self) -> None: ...


class SentRequests(Generic[Result]):
    """Requests that were sent to several servers. Call it for the results, or abandon it; once."""

    def __init__(self, pending: Mapping[int, Pending[Result]]) -> None:
        self._pending = pending

    def __call__(self) -> dict[int, Result]:
        """Wait for all results; raise the failure of the first server, by index, that failed."""
        results: dict[int, Result] = {}
        failures: dict[int, StratagemError] = {}
        try:
            for task, request in self._pending.items():
                try:
                    results[task] = request.result()
                except StratagemError as error:
                    failures[task] = error
        finally:
            self.abandon()
        if failures:
            raise failures[min(failures)]
        return results

    def abandon(self) -> None:
        """Give up what has no outcome yet."""
        for request in self._pending.values():
            request.abandon()


class ServerGroup:
    """The servers of the ps job, by task index. Thread-safe.

    Connects at the first request and keeps the sessions alive until `close`, the end of the
    program, or until nobody uses it any more.

    Attributes:
        steps: Which requests belong together; what `call_all` sends always does.
        used: Indices of the servers that variables are placed on.
        snapshot: The cut of which all is read, while nothing may be changed; empty for what is
            there now.
        changes: How often something was changed, other than by steps.
        client: Names this client in its sessions with all servers.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        identity: Identity,
        deadlines: Deadlines | None = None,
        visible: VisibleServers | None = None,
        locate: Callable[[int], str] | None = None,
    ) -> None:
        """Describe the servers; do not connect.

        Without `visible`, this task uses and may call all of them. Where the server of an index is
        now is said by `locate`, "" if that is not known.
        """
        self._description = addresses, identity, deadlines, visible, locate
        self._visible = visible or VisibleServers(tuple(range(len(addresses))))
        self.used: Sequence[int] = self._visible.used
        self.steps: CheckpointSteps = CheckpointSteps()
        self.snapshot = b""
        self.changes: int = 0
        client = replace(
            identity, client=secrets.token_bytes(SESSION_ID_BYTES), ps_tasks=len(addresses)
        )
        made: list[Connection] = []
        # This must not keep the group alive, which closes its connections at its end.
        servers = partial(_known, made, self._visible.called)
        for task, address in enumerate(addresses):
            located = partial(locate, task) if locate else str
            directory = TaskDirectory(task, identity, located, servers)
            told = replace(client, filtered=self._visible.filtered.get(task))
            made.append(
                Connection(task, address, told, deadlines or Deadlines(), self.steps, directory)
            )
        self.client: bytes = client.client
        self._connections = connections = tuple(made)
        self._backlog = Backlog(self.steps)
        self._in_flight: InFlightPush = _NoPush()
        self._heartbeat = Heartbeat(connections, self.steps, client.name)
        self._finalizer = weakref.finalize(self, _close, connections, self._heartbeat)

    def __deepcopy__(self, memo: object) -> ServerGroup:
        # A copy talks to the same servers, in sessions of its own.
        return ServerGroup(*self._description)

    def beside(self) -> ServerGroup:
        """Return the same servers, in sessions of another client of this process.

        Its requests do not wait for those of this one, which has to stay there.
        """
        return ServerGroup(*self._description)

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def addresses(self) -> Sequence[str]:
        """The "host:port" of each server as far as is known, by task index.

        Of a server with replicas it is theirs, with commas between.
        """
        return [connection.route.listed for connection in self._connections]

    @property
    def known(self) -> Sequence[str]:
        """The "host:port" of servers that may be called: where tasks began, and where they are."""
        return [*_known(self._connections, self.called)]

    @property
    def identity(self) -> Identity:
        """What servers are told about this process."""
        return self._description[1]

    @property
    def traffic(self) -> Traffic:
        return sum((each.route.meter.total for each in self._connections), Traffic())

    @property
    def runs(self) -> dict[int, bytes]:
        """The runs of the servers that there are sessions with, by task index."""
        runs = ((task, each.run) for task, each in enumerate(self._connections))
        return {task: run for task, run in runs if run}

    @property
    def reached(self) -> dict[int, bytes]:
        """How far servers had come when they answered last, by task index."""
        told = ((task, each.reached) for task, each in enumerate(self._connections))
        return {task: reached for task, reached in told if reached}

    def note_heard(self, reached: Mapping[int, bytes]) -> None:
        """Note how far servers had come when they answered another process."""
        for task, connection in enumerate(self._connections):
            if task in reached:
                connection.note_heard(reached[task])

    @property
    def topology(self) -> object:
        """What changes whenever `runs` or `addresses` do."""
        return [(each.run, each.route.listed) for each in self._connections]

    def need_all(self, condition: Callable[[], bool]) -> None:
        """Take servers for lost that go back to a checkpoint while a condition holds."""
        for connection in self._connections:
            connection.needs_all = condition

    def expect(self, runs: Mapping[int, bytes]) -> None:
        """Take servers for lost that were restarted since another task's `runs`."""
        for task, run in runs.items():
            self._connections[task].expect(run)

    def act_for(self, program: bytes) -> None:
        """Belong to a program of another process, whose functions this one runs."""
        for connection in self._connections:
            connection.act_for(program)

    def move(self, addresses: Sequence[str]) -> None:
        """Note where servers are now, by another task's `addresses`."""
        for connection, address in zip(self._connections, addresses, strict=True):
            connection.route.move(address)

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    @property
    def called(self) -> Sequence[int]:
        """Indices of those among them that this task may call."""
        return self._visible.called

    def require_visible(self, task: int) -> None:
        """Check that this task may call a server; raise FailedPreconditionError if not."""
        if reason := self._visible.hidden.get(task):
            raise FailedPreconditionError(reason, task=f"/job:ps/task:{task}")

    def require_all_visible(self, what: str) -> None:
        """Raise FailedPreconditionError if this task may not call all servers, as `what` needs."""
        for task, reason in self._visible.hidden.items():
            raise FailedPreconditionError(
                f"{what} needs all servers, but {reason}", task=f"/job:ps/task:{task}"
            )

    def send_first(self, push: InFlightPush) -> None:
        """Have all other requests wait for a push that is sent as `Order.IN_FLIGHT`."""
        self._in_flight = push
        waiting = WeakMethod(push.wait_in_background)

        # Keeps nothing alive that its program has dropped.
        def wait_if_used() -> None:
            if (wait := waiting()) is not None:
                wait()

        self._heartbeat.idle = wait_if_used

    def call(self, task: int, request: Request[Result]) -> Result:
        """Send a request to one server and wait for its result; as `call_all`."""
        return self.call_all({task: request})[task]

    def on_all(self, request: Callable[[], Request[Result]]) -> dict[int, Result]:
        """Send each server that may be called its own request, which `request` makes."""
        return self.call_all({task: request() for task in self.called})

    def call_all(
        self, requests: Mapping[int, Request[Result]], order: Order = Order.AFTER_PUSH
    ) -> dict[int, Result]:
        """Send a request to each of several servers, by task index; return their results.

        All are in flight at once.

        Raises:
            FailedPreconditionError: A server is hidden from this task, or something is to be
                changed while this task reads from a snapshot.
            StratagemError: A server could not be reached for the first time, and nothing was sent.
                Or of the first server, by index, that failed; the others' requests were carried out
                all the same. Of writes that are not waited for, only that they could not be sent;
                otherwise they fail the function.
        """
        if order is Order.BEHIND and self._pipelined(requests):
            return {}
        is_waiting = self.steps.pace.begin_wait()
        is_entered = False
        try:
            if order in (Order.AFTER_PUSH, Order.BEHIND):
                self._in_flight.finish()
            is_part_of_step = order is Order.STEP
            if not is_part_of_step and any([one.mutates for one in requests.values()]):
                self.changes += 1
                is_part_of_step = True
            if is_part_of_step:
                # Servers take one of them at a time.
                self._in_flight.wait()
            self._prepare(requests)
            if is_part_of_step:
                self.require_present()
                is_entered = self.steps.enter()
            return self._exchanged(requests)
        finally:
            if is_entered:
                self.steps.leave()
            if is_waiting:
                self.steps.pace.end_wait()

    def start_all(
        self, requests: Mapping[int, Request[Result]], order: Order = Order.AFTER_PUSH
    ) -> SentRequests[Result]:
        """Send requests as `call_all` does, and do not wait for the results.

        They change nothing, or are `Order.IN_FLIGHT`.
        """
        if order is not Order.IN_FLIGHT:
            self._in_flight.finish()
            self._prepare(requests)
            return self._sent(requests)
        self._prepare(requests)
        self.require_present()
        with self.steps.step_scope():
            return self._sent(requests)

    def _prepare(self, tasks: Iterable[int]) -> None:
        self._begin(tasks)
        self._backlog.wait()

    def _begin(self, tasks: Iterable[int]) -> None:
        if self._visible.hidden:
            for task in tasks:
                self.require_visible(task)
        self._heartbeat.start()

    def _pipelined(self, requests: Mapping[int, Request[Any]]) -> bool:
        """Send small writes of a scheduled function; return False if they are to be waited for."""
        writes = present_writes()
        if writes is None or any(
            one.request_nbytes > _MOST_BEHIND_BYTES for one in requests.values()
        ):
            return False
        self._begin(requests)
        self.require_present()
        self._in_flight.finish()
        self.changes += 1
        for task, request in requests.items():
            # It may be sent again after the caller has changed its tensors.
            send = partial(self._connections[task].pipeline, request.behind())
            self._backlog.add(writes, send)
        return True

    def require_present(self) -> None:
        """Raise FailedPreconditionError while this task reads from a snapshot."""
        if self.snapshot:
            raise FailedPreconditionError(
                "this strategy reads from a snapshot, in which nothing changes; leave "
                "strategy.snapshot() before you write variables or take a step"
            )

    def _exchanged(self, requests: Mapping[int, Request[Result]]) -> dict[int, Result]:
        if len(requests) == 1:
            ((task, request),) = requests.items()
            return {task: self._connections[task].call(request)}
        try:
            return self._sent(requests)()
        except BaseException:
            for task in sorted(requests):
                if requests[task].mutates:
                    self._connections[task].release_interrupted()
            raise

    def _sent(self, requests: Mapping[int, Request[Result]]) -> SentRequests[Result]:
        tasks = sorted(requests, key=self._turn)
        # Before anything is sent: a server that cannot be reached must not leave half of it done.
        for task in tasks:
            self._connections[task].open()
        pending: dict[int, Pending[Result]] = {}
        sent = SentRequests(pending)
        try:
            for task in tasks:
                pending[task] = self._connections[task].start(requests[task])
        except BaseException:
            sent.abandon()
            raise
        return sent

    def _turn(self, task: int) -> int:
        """Return when a server has its turn: one order for all threads, as mutations wait for each.

        What is large goes to one server after the other. If all workers began with the first one,
        they would fill the link of one server at a time, and leave those of the others idle.
        """
        return (task - self.identity.index) % len(self)

    def close(self) -> None:
        self._finalizer()


def _known(connections: Sequence[Connection], tasks: Iterable[int]) -> Iterator[str]:
    for task in tasks:
        route = connections[task].route
        yield from route.listed.split(",")
        yield route.address


def _close(connections: Sequence[Connection], heartbeat: Heartbeat) -> None:
    heartbeat.stop()
    for connection in connections:
        connection.close()
