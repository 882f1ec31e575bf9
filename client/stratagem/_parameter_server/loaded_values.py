"""Values that the program sets itself, in parameters and in optimizers' state.

The chief's go to the servers. Other tasks may set the same ones, so that one program does for all
of them; what they set is held until the next run, step or barrier. Which of the two comes first is
open, and the chief may have trained on by the time that another task looks. So what he has set is
told by marks of the contents, which outlast the values themselves.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import torch

from stratagem._cluster.tasks import Membership
from stratagem._core.variables import Variable
from stratagem._core.waiting import Awaited, Wait
from stratagem._hosting.hosted_parameter import HostedParameter
from stratagem._hosting.replica_views import ParameterRegistry
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.tables.variable import TableVariable
from stratagem._parameter_server.variables.variable import Slots, parts_of
from stratagem._ps_client.requests.checkpoints import announce_restored, list_restored
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.errors import ContextError, FailedPreconditionError, InvalidArgumentError
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_SET

_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5
_MARK_BYTES = 16
_MOST_MARKS = 1000
"""In one announcement, which is a message's header."""

# Identities of checkpoints are none of these: they are paths, or JSON.
_SET = "values set:"
_FIRST = "the first of a program"


class Held(NamedTuple):
    """What a task that is not the chief has set.

    Attributes:
        what: What errors call it.
        mark: What tells its content and name.
        is_current: Says whether the servers have the same now.
    """

    what: str
    mark: str
    is_current: Callable[[], bool]


def mark_of(name: str, contents: Sequence[tuple[str, torch.Tensor]]) -> str:
    """Return what tells named tensors from others, to a certainty that does."""
    found = blake2b(name.encode(), digest_size=_MARK_BYTES)
    for key, tensor in contents:
        found.update(f"\0{key} {tensor.dtype} {list(tensor.shape)}\0".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


class Agreement:
    """Compares what this task has set with what the chief has."""

    def __init__(self, store: RemoteStore, membership: Membership) -> None:
        self._store = store
        self._membership = membership
        self._has_announced = False
        self._agreed: Counter[str] = Counter()

    def announce(self, marks: Sequence[str]) -> None:
        """Let the others know what the chief has set, unless he is alone."""
        if not marks or not self._membership.has_others:
            return
        for start in range(0, len(marks), _MOST_MARKS):
            header = _SET if self._has_announced else f"{_SET} {_FIRST}"
            identity = "\n".join([header, *marks[start : start + _MOST_MARKS]])
            self._store.servers.on_all(partial(announce_restored, identity))
            self._has_announced = True

    def require(self, held: Sequence[Held], seconds: float) -> None:
        """Wait until the chief has set the same, unless the servers have it anyhow.

        Each time that he has set something answers for one time here.

        Raises:
            FailedPreconditionError: Something is not the same after so many seconds.
        """
        missing: Sequence[Held] = [one for one in self._not_announced(held) if not one.is_current()]
        if missing and seconds:
            member = self._membership
            whom = f"the chief, {member.creator_place}, to set {missing[0].what}"
            task, _, _ = member.creator_place.partition(" at ")
            awaited = Awaited.one_task(task, missing[0].what, "program")
            with Wait(member.name, whom, seconds, awaited):
                missing = self._awaited(missing, seconds)
        if missing:
            raise self._difference(missing[0].what, seconds)
        self._agreed.update(one.mark for one in held)

    def _awaited(self, held: Sequence[Held], seconds: float) -> Sequence[Held]:
        """Return those that the chief has not set in time."""
        give_up_at = time.monotonic() + seconds
        pause = _PAUSE_SECONDS
        while (held := self._not_announced(held)) and time.monotonic() < give_up_at:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return held

    def _not_announced(self, held: Sequence[Held]) -> Sequence[Held]:
        told = self._announced() - self._agreed
        return [one for one in held if not told[one.mark]]

    def _announced(self) -> Counter[str]:
        """Return how often the chief's present program has set what."""
        servers = self._store.servers
        found: Counter[str] = Counter()
        visible = next(iter(servers.called), servers.used[0])
        for identity in servers.call(visible, list_restored()).identities:
            header, *marks = identity.split("\n")
            if not header.startswith(_SET):
                continue
            if header.endswith(_FIRST):
                found.clear()
            found.update(marks)
        return found

    def _difference(self, what: str, seconds: float) -> FailedPreconditionError:
        member = self._membership
        waited = f" in {seconds:g} s" if seconds else ""
        return FailedPreconditionError(
            f"{what} was set in {member.name} to values that differ from those of the "
            f"servers, and the chief, {member.creator_place}, has not set it to the "
            f"same{waited}. The chief's values count: set the same in all tasks, for "
            "instance from the same file, or only in the chief, where "
            "strategy.extended.should_checkpoint is true",
            task=member.name,
        )


class LoadedValues:
    """What the program of one task has set, until the servers have it."""

    def __init__(
        self, store: RemoteStore, parameters: ParameterRegistry, membership: Membership
    ) -> None:
        self._store = store
        self._parameters = parameters
        self._creates = membership.creates
        self._agreement = Agreement(store, membership)
        self._others: dict[object, Held] = {}

    def carry(self) -> None:
        """Write what the chief has set to the servers; what others set is held."""
        if not self._creates:
            return
        written = written_in(self._store, self._parameters)
        if written:
            marks = [_mark(hosted) for hosted in written]
            carry(self._store, written)
            self._agreement.announce(marks)

    def agree(self, seconds: float | None = None) -> None:
        """As `carry`, and require of other tasks that the chief has set the same.

        Raises:
            FailedPreconditionError: He has not within that time, by default `peer_seconds`. What
                was set here stays held.
        """
        if self._creates:
            return self.carry()
        written = written_in(self._store, self._parameters)
        if not written and not self._others:
            return None
        held = [self._held(hosted) for hosted in written] + [*self._others.values()]
        wait = self._store.peer_seconds if seconds is None else seconds
        self._agreement.require(held, wait)
        self._others.clear()
        for hosted in written:
            for part in parts_of(hosted.variable):
                # The chief may have trained on.
                part.invalidate()
        return None

    def _held(self, hosted: HostedParameter) -> Held:
        parts = parts_of(hosted.variable)
        values = [part.leaf.detach().clone() for part in parts]

        def is_current() -> bool:
            found = map(self._store.snapshot, parts)
            return all(map(_same_bytes, found, values))

        return Held(f"parameter {hosted.name!r}", _mark(hosted), is_current)

    def announce_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        """Let other tasks know which state the chief has given an optimizer."""
        self._agreement.announce(
            [_mark_of_slots(optimizer, one, state) for one, state in slots.items()]
        )

    def hold_slots(
        self,
        optimizer: str,
        slots: Mapping[Variable, Slots],
        read: Callable[[str, Sequence[Variable]], Sequence[Slots]],
    ) -> None:
        """Hold the state that a task that is not the chief has given an optimizer.

        `read` asks the servers for what they have for an optimizer and variables.
        """
        for variable, state in slots.items():
            mark = _mark_of_slots(optimizer, variable, state)
            is_current = partial(_has_slots, read, optimizer, variable, mark)
            what = f"the state of optimizer {optimizer!r} for {variable.name!r}"
            self._others[optimizer, variable] = Held(what, mark, is_current)

    def set_table(
        self, table: TableVariable, value: torch.Tensor, write: Callable[[], None]
    ) -> None:
        """Carry out `Loading.set_table`."""
        mark = _mark_of(table.name, value)
        if self._creates:
            write()
            self._agreement.announce([mark])
            return

        def is_current() -> bool:
            return table.is_readable and _mark_of(table.name, table.present()) == mark

        self._others[table] = Held(f"parameter {table.name!r}", mark, is_current)

    def agree_on(self, table: TableVariable) -> None:
        """Carry out `Loading.agree_on`."""
        if table in self._others:
            self.agree()


class OnlyTheChief:
    """Where nobody waits for the chief: what others set is refused."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def set_table(
        self, table: TableVariable, value: torch.Tensor, write: Callable[[], None]
    ) -> None:
        """Carry out `Loading.set_table`, if this task is the chief."""
        self._membership.require_creator(f"parameter {table.name!r}")
        write()

    def agree_on(self, table: TableVariable) -> None:
        """Carry out `Loading.agree_on`: nothing is held."""


def _mark(hosted: HostedParameter) -> str:
    return _mark_of(hosted.name, hosted.parameter)


def _mark_of(name: str, value: torch.Tensor) -> str:
    return mark_of(f"parameter {name}", [("", value)])


def _mark_of_slots(optimizer: str, variable: Variable, slots: Slots) -> str:
    return mark_of(f"state {optimizer} {variable.name}", sorted(slots.items()))


def _has_slots(
    read: Callable[[str, Sequence[Variable]], Sequence[Slots]],
    optimizer: str,
    variable: Variable,
    mark: str,
) -> bool:
    (found,) = read(optimizer, [variable])
    return _mark_of_slots(optimizer, variable, found) == mark


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return mark_of("", [("", one)]) == mark_of("", [("", other)])


def written_in(store: RemoteStore, parameters: ParameterRegistry) -> list[HostedParameter]:
    """Return what the user wrote since the parameters were last accepted.

    Raises:
        InvalidArgumentError: A parameter has another shape or dtype than before.
    """
    written = store.copy_guard.scan_if_quiet(parameters.written_locally)
    for hosted in written:
        _require_same(hosted)
    return written


def carry(store: RemoteStore, written: Sequence[HostedParameter]) -> None:
    """Write to the servers what the user wrote."""
    writings = {}
    for hosted in written:
        for part in parts_of(hosted.variable):
            value = part.leaf.detach()
            writings[part] = Writing(part.name, ASSIGN_MODE_SET, value)
    versions = store.write(writings)
    for hosted in written:
        hosted.accept_everywhere()
        for part in parts_of(hosted.variable):
            part.accept(versions[part.name])


IN_REPLICA = (
    "a replica, where each step would lose it again; write parameters outside of run(), which a "
    "loop with one replica does not need"
)
IN_FUNCTION = (
    "a function that a coordinator has scheduled, on a worker whose copy nobody else sees; do so "
    "in the coordinator's program, between functions"
)


def refused(written: Sequence[HostedParameter], where: str) -> ContextError:
    """Return the error of parameters that were written where nobody would see it."""
    return ContextError(
        f"parameter {written[0].name!r} was written in {where}, or change it by an optimizer "
        "or by extended.update()"
    )


def drop_writes(store: RemoteStore, parameters: ParameterRegistry) -> list[HostedParameter]:
    """Take what was written for no values of the variables, and return where it was.

    Parameters get the variables' values back before the next step.
    """
    written = store.copy_guard.scan_if_quiet(parameters.written_locally)
    for hosted in written:
        for part in parts_of(hosted.variable):
            part.invalidate()
    return written


def _require_same(hosted: HostedParameter) -> None:
    parameter, variable = hosted.parameter, hosted.variable
    if parameter.shape != variable.shape or parameter.dtype != variable.dtype:
        raise InvalidArgumentError(
            f"parameter {hosted.name!r} now has shape {tuple(parameter.shape)} and "
            f"dtype {parameter.dtype}, but its variable on {variable.device_name} has "
            f"{tuple(variable.shape)} and {variable.dtype}; change both before the "
            "scope closes",
            variable=hosted.name,
        )
