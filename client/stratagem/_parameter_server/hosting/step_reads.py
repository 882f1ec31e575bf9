"""Reading what steps need of the servers, and beginning them with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from stratagem._parameter_server.pushing.global_norm import finish
from stratagem._parameter_server.pushing.push import Pulls
from stratagem._parameter_server.pushing.step_tracker import StepTracker
from stratagem._parameter_server.variables.cached_reads import note_read
from stratagem._parameter_server.variables.variable import Copies
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.reading import AnyReading, Reading
from stratagem._ps_client.requests.reads import read
from stratagem._ps_client.requests.request import Request
from stratagem_proto.errors import UnfinishedStepError
from stratagem_proto.v1.consistency_pb2 import StepBegin, StepGrant
from stratagem_proto.v1.parameter_server_pb2 import ReadHeader, StepMark


class Beginning:
    """Steps that begin with a read of the first server.

    `begins` are what to ask permits for, if any; `grants` are the permits once they have come, none
    where a step has to wait.
    """

    def __init__(self, begins: Sequence[StepBegin] = ()) -> None:
        self.begins = begins
        self.grants: Sequence[StepGrant] = ()


class StepReads:
    """Reads values as the synchronous steps before allow, or as a snapshot has them.

    Attributes:
        rejected: How many synchronous steps of an optimizer were dropped, by its name.
    """

    def __init__(
        self, servers: ServerGroup, step_tracker: StepTracker, peer_seconds: float, pulls: Pulls
    ) -> None:
        self._servers, self._step_tracker = servers, step_tracker
        self._peer_seconds, self._pulls = peer_seconds, pulls
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
        rounded_to = self._pulls.rounded_to
        readings = {
            server: [one.reading(rounded_to(one, training)) for one in group]
            for server, group in groups.items()
        }
        with self._pulls:
            try:
                versions, grants = self.begin(readings, begins)
            except BaseException:
                # What has come of other servers is not to count as the user's writing.
                for variable in chain.from_iterable(groups.values()):
                    variable.distrust()
                raise
            for server, group in groups.items():
                each = zip(group, readings[server], versions[server], strict=True)
                for variable, reading, version in each:
                    variable.accept(version, reading.narrowed_to is not None)
                note_read(group)
        return grants

    def begin(
        self, readings: Mapping[int, Sequence[Reading]], begins: Sequence[StepBegin]
    ) -> tuple[dict[int, list[int]], Sequence[StepGrant]]:
        """Begin steps that nobody is expected to wait for, and read, by server.

        Asking for permits and values at once spares a request. Return the versions read, and the
        permits; none if one has to wait.
        """
        beginning = Beginning(begins)
        all_readings = {self._servers.used[0]: (), **readings} if begins else readings
        versions = self.read(all_readings, beginning=beginning)
        return versions, beginning.grants

    def read(
        self,
        readings: Mapping[int, Sequence[AnyReading]],
        beside_push: bool = False,
        beginning: Beginning | None = None,
    ) -> dict[int, list[int]]:
        """Read, by server, after the synchronous steps that the next step needs."""
        marks = [] if self._servers.snapshot else [*self._step_tracker.all_after()]
        # A read waits for one mark at most.
        for mark in marks[:-1]:
            self.after(mark, dict.fromkeys(readings, ()))
        last = marks[-1] if marks else None
        return self.after(last, readings, beside_push, beginning)

    def after(
        self,
        mark: StepMark | None,
        readings: Mapping[int, Sequence[AnyReading]],
        beside_push: bool = False,
        beginning: Beginning | None = None,
    ) -> dict[int, list[int]]:
        """Read after a synchronous step, or from the snapshot; return the versions, by server.

        With `beside_push`, do not wait for a push in flight.
        """
        if self._servers.snapshot:
            mark = None
        asked = partial(self._asked, mark, readings, beginning or Beginning())
        beside_push = beside_push and mark is None
        try:
            return self._servers.together(asked(), beside_push)
        except UnfinishedStepError:
            if mark is None:
                raise
            # Who closed the step has ended, and any other may do the rest.
            finish(self._servers, mark, self._peer_seconds)
            return self._servers.together(asked())

    def _asked(
        self,
        mark: StepMark | None,
        readings: Mapping[int, Sequence[AnyReading]],
        beginning: Beginning,
    ) -> dict[int, Request[list[int]]]:
        wait = 0.0 if mark is None else self._peer_seconds
        told = partial(self._told, mark, beginning)
        first, snapshot = self._servers.used[0], self._servers.snapshot
        begins = beginning.begins
        inputs = self._step_tracker.take_inputs() if begins else ()
        return {
            server: read(group, mark, wait, told, snapshot, begins, inputs)
            if server == first
            else read(group, mark, wait, told, snapshot)
            for server, group in readings.items()
        }

    def _told(self, mark: StepMark | None, beginning: Beginning, header: ReadHeader) -> None:
        if mark is not None:
            self.rejected[mark.group] = header.rejected_steps
        if header.grants:
            beginning.grants = list(header.grants)
