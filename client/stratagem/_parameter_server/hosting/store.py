"""The variables of one strategy, where they are kept: on the servers."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TypeAlias

import torch

from stratagem._parameter_server.hosting.attachment import Training
from stratagem._parameter_server.hosting.gradients import GradientRouter, Programs
from stratagem._parameter_server.hosting.push import CopyGuard, PullMode
from stratagem._parameter_server.hosting.pusher import Pusher
from stratagem._parameter_server.hosting.steps import (
    Contributions,
    StepPermit,
    StepTracker,
    finish,
)
from stratagem._parameter_server.variables.variable import (
    Copies,
    RemoteVariable,
    by_server,
    note_read,
    unread,
)
from stratagem._ps_client.group import Order, ServerGroup
from stratagem._ps_client.requests.coordination import begin
from stratagem._ps_client.requests.reads import AnyReading, AskedRows, Reading, RowsReading, read
from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.requests.variables import (
    Writing,
    assign,
    create,
    delete,
    list_keys,
    list_variables,
)
from stratagem_proto.errors import (
    DeadlineExceededError,
    StratagemError,
    UnevenStepsError,
    UnfinishedStepError,
)
from stratagem_proto.input_order import MAX_REPORTED, BatchRead
from stratagem_proto.v1.consistency_pb2 import StepBegin, StepGrant
from stratagem_proto.v1.parameter_server_pb2 import ReadHeader, StepMark
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_SET, ListVariablesResponse

_LOG = logging.getLogger("stratagem")

# For so long servers are asked at once, which takes one request of each. Who waits for longer
# learns from the first one if others do not come.
_AT_ALL_SECONDS = 2.0


class StepReads:
    """Reads values as the synchronous steps before allow, or as a snapshot has them.

    Attributes:
        rejected: How many synchronous steps of an optimizer were dropped, by its name.
    """

    def __init__(
        self, servers: ServerGroup, step_tracker: StepTracker, peer_seconds: float, guard: CopyGuard
    ) -> None:
        self._servers, self._step_tracker = servers, step_tracker
        self._peer_seconds, self._guard = peer_seconds, guard
        self.rejected: dict[str, int] = {}

    def bring(
        self, groups: Copies, begins: Sequence[StepBegin] = (), *, training: bool
    ) -> Sequence[StepGrant]:
        """Bring copies up to date, after the synchronous steps that they wait for.

        Args:
            groups: Whose copies.
            begins: Steps to ask permits for, if that needs no waiting.
            training: Whether they are only for a training step, and may be rounded.

        Returns:
            Permits for these steps; none if one has to wait.
        """
        rounded_to = self._guard.rounded_to
        readings = {
            server: [one.reading(rounded_to(one, training)) for one in group]
            for server, group in groups.items()
        }
        with self._guard:
            try:
                # Asking for permits and values at once spares a request.
                asked = {self._servers.used[0]: (), **readings} if begins else readings
                versions, grants = self.read(asked, begins=begins)
            except BaseException:
                # What has come of other servers is not to count as the user's writing.
                for variable in chain.from_iterable(groups.values()):
                    variable.invalidate()
                raise
            for server, group in groups.items():
                each = zip(group, readings[server], versions[server], strict=True)
                for variable, reading, version in each:
                    variable.accept(version, reading.narrowed_to is not None)
                note_read(group)
        return grants

    def read(
        self,
        readings: Mapping[int, Sequence[AnyReading]],
        beside_push: bool = False,
        begins: Sequence[StepBegin] = (),
    ) -> tuple[dict[int, list[int]], Sequence[StepGrant]]:
        """Read, by server, after the synchronous steps that the next step needs; see `after`."""
        marks = [] if self._servers.snapshot else [*self._step_tracker.all_after()]
        # A read waits for one mark at most.
        for mark in marks[:-1]:
            self.after(mark, dict.fromkeys(readings, ()))
        return self.after(marks[-1] if marks else None, readings, beside_push, begins)

    def after(
        self,
        mark: StepMark | None,
        readings: Mapping[int, Sequence[AnyReading]],
        beside_push: bool = False,
        begins: Sequence[StepBegin] = (),
    ) -> tuple[dict[int, list[int]], Sequence[StepGrant]]:
        """Read after a synchronous step, or from the snapshot.

        Args:
            mark: The step; None for any.
            readings: What to read, by server.
            beside_push: Whether not to wait for a push in flight.
            begins: Steps to ask the first server for permits for, if it is read.

        Returns:
            The versions, by server; and the permits, none if a step has to wait.
        """
        servers, snapshot = self._servers, self._servers.snapshot
        if snapshot:
            mark = None
        wait = 0.0 if mark is None else min(self._peer_seconds, _AT_ALL_SECONDS)
        granted: list[StepGrant] = []

        def note_header(header: ReadHeader) -> None:
            if mark is not None:
                self.rejected[mark.group] = header.rejected_steps
            if header.grants:
                granted[:] = header.grants

        def requests() -> dict[int, Request[list[int]]]:
            inputs = self._step_tracker.take_inputs() if begins else ()
            return {
                server: read(group, mark, wait, note_header, snapshot, begins, inputs)
                if server == servers.used[0]
                else read(group, mark, wait, note_header, snapshot)
                for server, group in readings.items()
            }

        try:
            order = Order.BESIDE_PUSH if beside_push and mark is None else Order.AFTER_PUSH
            versions = servers.call_all(requests(), order)
        except (DeadlineExceededError, UnfinishedStepError) as error:
            if mark is None:
                raise
            self._help_or_wait(mark, error)
            wait = self._peer_seconds
            versions = servers.call_all(requests())
        return versions, granted

    def _help_or_wait(self, mark: StepMark, error: StratagemError) -> None:
        """Bring about what a step lacks, or wait for it where it is known if others do not come."""
        if isinstance(error, UnfinishedStepError):
            # Who closed the step has ended, and any other may do the rest.
            finish(self._servers, mark, self._peer_seconds)
            return
        left = max(self._peer_seconds - _AT_ALL_SECONDS, 0.0)
        self._servers.call(self._servers.used[0], read((), mark, left))


class StepEnds:
    """Leaves copies as the step that was taken last has made them."""

    def __init__(
        self, servers: ServerGroup, step_tracker: StepTracker, reads: StepReads, pusher: Pusher
    ) -> None:
        self._servers, self._step_tracker = servers, step_tracker
        self._reads, self._pusher = reads, pusher
        # The copies that are behind, and why.
        self.behind: tuple[Copies, StratagemError] | None = None

    def wait(self, copies: Copies) -> None:
        """Bring what a step has stepped up to date, when all have contributed.

        This worker's part counts already. So if others do not come in time, that is not raised
        here, but by what would be computed on old values: the next step, or refresh. A program that
        ends before has the log alone to tell it.

        Raises:
            UnevenStepsError: Others never come, unless they are started again.
        """
        step_tracker = self._step_tracker
        # Others may change consistencies between two steps.
        begins = step_tracker.begins() if step_tracker.is_alone else []
        groups = {server: [*unread(some)] for server, some in copies.items()}
        try:
            with self._servers.steps.pausing():
                grants = self._reads.bring(groups, begins, training=True)
        except StratagemError as error:
            self.behind = copies, error
            if isinstance(error, UnevenStepsError):
                raise
            _LOG.warning(
                "a step of this worker counts, but was not completed, and the parameters here are "
                "those before it; the next step, or refresh(), raises: %s",
                error,
            )
            return
        if grants:
            step_tracker.granted(begins, grants)
            self._pusher.drop(fresh=[*chain.from_iterable(groups.values())])

    def require_fresh(self) -> None:
        """Refuse a step that was not computed on the values of all steps before."""
        if self.behind is not None:
            copies, error = self.behind
            self._reads.bring(copies, training=True)
            self.behind = None
            raise error


_RowKind: TypeAlias = tuple[int, torch.dtype, torch.Size, torch.dtype | None]
"""A server, and what rows must have in common to come from it as one tensor."""

_NO_ROWS = torch.empty(0)

# A program that reads and takes no steps reports this many batches at once.
_UNREPORTED = MAX_REPORTED // 4


class RemoteStore:
    """Batches what is asked of the servers: one request for each at a time.

    Args:
        servers: The servers.
        peer_seconds: How long to wait for what other workers have to do first.
        step_tracker: How far this worker is in its steps.
        pull_dtype: What trainable variables are rounded to on their way to a training step; None
            for not at all.
        pull_mode: Whether the answer to a push brings what the next step starts with.

    Attributes:
        copy_guard: Entered while values come into copies.
        pull_mode: Whether the answer to a push brings what the next step starts with.
        pusher: How gradients go, where they do not wait for those of others.
        contributions: What it contributes to synchronous steps.
        programs: How servers are told of steps.
        routes: Where gradients go.
        reads: Reading what steps need.
        ends: The ends of synchronous steps.
        training: What the variables belong to.
        table_changes: How often this process has changed rows of tables, other than by steps.
    """

    def __init__(
        self,
        servers: ServerGroup,
        peer_seconds: float,
        step_tracker: StepTracker,
        pull_dtype: torch.dtype | None = None,
        pull_mode: PullMode = PullMode.NEVER,
    ) -> None:
        self.servers = servers
        self.peer_seconds = peer_seconds
        self.step_tracker = step_tracker
        self.copy_guard: CopyGuard = CopyGuard(servers, pull_dtype)
        self.pull_mode = pull_mode
        self.pusher: Pusher = Pusher(servers, step_tracker, self.copy_guard, pull_mode)
        self.contributions: Contributions = Contributions(servers, step_tracker, peer_seconds)
        self.programs: Programs = Programs()
        self.routes: GradientRouter = GradientRouter()
        self.reads: StepReads = StepReads(servers, step_tracker, peer_seconds, self.copy_guard)
        self.ends: StepEnds = StepEnds(servers, step_tracker, self.reads, self.pusher)
        self.training: Training = Training()
        self.table_changes = 0

    @property
    def first(self) -> int:
        """The server that keeps the clocks of all workers, and their barriers."""
        return self.servers.used[0]

    def ask_first(self, request: Request[Result]) -> Result:
        """Send that server a request."""
        return self.servers.call(self.first, request)

    def create(self, variables: Sequence[RemoteVariable]) -> None:
        """Create variables with the values that their copies have.

        Raises:
            AlreadyExistsError: A server has a variable of that name.
        """
        self._create(variables, self.training.identifier, self.training.unaware)
        self.training.unaware = set()

    def _create(
        self, variables: Sequence[RemoteVariable], training: bytes, told: Iterable[int] = ()
    ) -> None:
        """Create variables, and tell their servers and others of the training if it is given."""
        groups = by_server(variables)
        requests = {server: create([], [], training) for server in told}
        for server, group in groups.items():
            specs = [variable.spec for variable in group]
            requests[server] = create(specs, _initial_values(group), training)
        answers = self.servers.call_all(requests)
        for server, group in groups.items():
            for variable, info in zip(group, answers[server].variables, strict=True):
                variable.accept(info.version)

    @contextmanager
    def filling(self, variables: Iterable[RemoteVariable]) -> Iterator[None]:
        """Create what servers have lost of variables, which get their values in the block.

        If they do not, they are lost again, to the next program too: a server is told of the
        training once it has values of it.
        """
        lost = self.training.released(variables)
        if not lost:
            yield
            return
        self._create(lost, b"")
        try:
            yield
        except BaseException:
            self.training.withhold(lost)
            with suppress(StratagemError):
                self.delete((one.place.server, one.name) for one in lost)
            raise
        self._create((), self.training.identifier, by_server(lost))

    def delete(self, variables: Iterable[tuple[int, str]]) -> None:
        """Delete variables, each given by its server and name."""
        names: defaultdict[int, list[str]] = defaultdict(list)
        for server, name in variables:
            names[server].append(name)
        self.servers.call_all({server: delete(group) for server, group in names.items()})

    def require(self, variables: Iterable[RemoteVariable]) -> None:
        """Check that variables exist.

        Raises:
            FailedPreconditionError: A server has lost one, or the program has had it deleted.
        """
        each = list(variables)
        if any([variable.is_forgotten for variable in each]):
            for variable in each:
                variable.require_remembered()
        if not self.training.is_whole:
            self.training.require(each)

    def refresh(self, variables: Iterable[RemoteVariable], training: bool = False) -> None:
        """Bring the copies up to date, as the next step of each optimizer needs them.

        Wait for slower workers and for synchronous steps, as the consistencies say. With a snapshot
        they are what they were at its moment, for no step. Values that are only for a training step
        may be rounded.
        """
        if not self.contributions.is_settled:
            self.contributions.settle()
        copies = [one for one in variables if one.has_copy]
        self.require(copies)
        if training and self.pusher.refresh(copies):
            return
        bring, step_tracker = partial(self.reads.bring, training=training), self.step_tracker
        groups = by_server(unread(copies))
        begins = [] if self.servers.snapshot else step_tracker.begins()
        if not begins:
            bring(groups)
        else:
            # Values and permits at once, unless values may be read only behind the permits.
            grants = () if step_tracker.leads() else bring(groups, begins)
            if grants:
                step_tracker.granted(begins, grants)
            if not grants or step_tracker.leads():
                inputs = step_tracker.take_inputs()
                awaited = self.ask_first(begin(begins, self.peer_seconds, inputs))
                step_tracker.granted(begins, awaited)
                bring(groups)
        if self.ends.behind is not None:
            stepped = chain.from_iterable(self.ends.behind[0].values())
            if set(stepped) <= set(copies):
                self.ends.behind = None

    def rows(
        self,
        variables: Sequence[RemoteVariable],
        rows: Sequence[torch.Tensor],
        training: bool = False,
    ) -> Sequence[torch.Tensor]:
        """Return some rows of each variable as they are now, without the rest of them.

        As `refresh` does, it waits for the last synchronous step. `rows` are int64 vectors.
        """
        asked = self.asked_rows(variables, rows, training)
        self.reads.read(asked.readings, beside_push=training)
        return asked.found

    def asked_rows(
        self, variables: Sequence[RemoteVariable], rows: Sequence[torch.Tensor], training: bool
    ) -> AskedRows:
        """Return how to read rows, those that are alike as one tensor; see `rows`."""
        self.require(variables)
        alike: dict[_RowKind, list[int]] = defaultdict(list)
        for number, variable in enumerate(variables):
            rounded_to = self.copy_guard.rounded_to(variable, training)
            kind = variable.place.server, variable.dtype, variable.shape[1:], rounded_to
            alike[kind].append(number)
        readings: dict[int, list[RowsReading]] = defaultdict(list)
        found: list[torch.Tensor] = [_NO_ROWS] * len(variables)
        for (server, dtype, shape, rounded_to), numbers in alike.items():
            wanted = [rows[number] for number in numbers]
            sizes = list(map(len, wanted))
            into = torch.empty(sum(sizes), *shape, dtype=dtype)
            names = [variables[number].name for number in numbers]
            readings[server].append(RowsReading(names, wanted, into, rounded_to))
            for number, values in zip(numbers, into.split(sizes), strict=True):
                found[number] = values
        return AskedRows(readings, found)

    def keys(self, part: RemoteVariable, limit: int) -> Iterator[torch.Tensor]:
        """Yield the keys of which a part of a table has rows, at most so many at a time.

        As `refresh` does, it waits for the last synchronous step.
        """
        server, after = part.place.server, None
        self.reads.read({server: ()})
        while True:
            request = list_keys(part.name, after, limit, self.servers.snapshot)
            page = self.servers.call(server, request)
            if len(page.keys):
                yield page.keys
                after = int(page.keys[-1])
            if page.is_last:
                return

    def announce(self, optimizer: str) -> None:
        """Let the servers know of an optimizer, whether or not it may go on."""
        with suppress(DeadlineExceededError):
            self.servers.call(self.first, begin(self.step_tracker.begins([optimizer]), wait=0.0))

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Let the others know what is finished, while this worker does not go on."""
        begins = self.step_tracker.begins()
        if not begins:
            yield
            return
        asked = self.servers.start_all({self.first: begin(begins, self.peer_seconds)})
        try:
            yield
        finally:
            asked.abandon()

    def report_input(self, read: BatchRead, now: bool) -> None:
        """Have a server compare what was read of a dataset with what other workers have read.

        That goes with the next permit that is asked for, unless it is to be `now`.

        Raises:
            InvalidArgumentError: They have read something else.
        """
        if self.step_tracker.note_input(read) >= _UNREPORTED or now:
            self.report_inputs()

    def report_inputs(self) -> None:
        """Report what was read and has not been reported; see `report_input`."""
        if inputs := self.step_tracker.take_inputs():
            self.ask_first(begin([], 0.0, inputs))

    def permit(self, optimizer: str) -> StepPermit:
        """Return the permit for an optimizer's next step, after asking if need be.

        A replica may take several steps on the values of one refresh.
        """
        permit = self.step_tracker.permit(optimizer)
        if permit is not None:
            return permit
        begins = self.step_tracker.begins([optimizer])
        inputs = self.step_tracker.take_inputs()
        grants = self.ask_first(begin(begins, self.peer_seconds, inputs))
        (permit,) = self.step_tracker.granted(begins, grants)
        if self.step_tracker.leads():
            # What came too late here may not be over on the other servers.
            self.reads.after(
                self.step_tracker.after(optimizer), dict.fromkeys(self.servers.called, ())
            )
        return permit

    def snapshot(self, variable: RemoteVariable) -> torch.Tensor:
        """Return the value of a variable as it is now, in memory of its own."""
        self.require([variable])
        value = torch.empty(variable.shape, dtype=variable.dtype)
        reading = Reading(variable.name, value)
        self.reads.after(None, {variable.place.server: [reading]})
        return value

    def write(self, writings: Mapping[RemoteVariable, Writing]) -> dict[str, int]:
        """Write variables, those of one server at once; return their new versions by name."""
        groups = by_server(writings)
        with self._filling_whole(writings):
            versions = self.servers.call_all(_assignments(groups, writings))
        return {
            variable.name: version
            for server, group in groups.items()
            for variable, version in zip(group, versions[server], strict=True)
        }

    def write_behind(self, writings: Mapping[RemoteVariable, Writing]) -> None:
        """Write variables; a scheduled function does not wait until that is done."""
        with self._filling_whole(writings):
            self.servers.call_all(_assignments(by_server(writings), writings), Order.BEHIND)
        for variable in writings:
            variable.outdate()

    @contextmanager
    def _filling_whole(self, writings: Mapping[RemoteVariable, Writing]) -> Iterator[None]:
        """As `filling`, for variables that get whole values; others have to exist."""
        if self.training.is_whole:
            yield
            return
        whole = {v for v, w in writings.items() if w.mode == ASSIGN_MODE_SET and w.rows is None}
        self.require(writings.keys() - whole)
        with self.filling(whole):
            yield

    def listing(self) -> dict[int, ListVariablesResponse]:
        """Return what each server hosts, slot variables included, and of which training it is."""
        return self.servers.on_all(list_variables)


def _assignments(
    groups: Mapping[int, Sequence[RemoteVariable]], writings: Mapping[RemoteVariable, Writing]
) -> dict[int, Request[list[int]]]:
    return {
        server: assign([writings[variable] for variable in group])
        for server, group in groups.items()
    }


def _initial_values(variables: Sequence[RemoteVariable]) -> list[torch.Tensor]:
    """Return the values of those that the server does not make itself."""
    return [v.leaf for v in variables if not v.spec.HasField("initializer")]
