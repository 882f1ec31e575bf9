"""Finding the variables that the chief creates, or that an earlier run has left."""

from __future__ import annotations

import gc
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from stratagem._checkpoints.files import origins_of
from stratagem._cluster.tasks import Membership
from stratagem._core.names import (
    Confusion,
    Origin,
    Origins,
    batches_of,
    doubtful,
    exchanged,
    lacking,
)
from stratagem._core.waiting import Awaited, Wait
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem_proto.division import PartRows
from stratagem_proto.errors import AlreadyExistsError, AttachmentError, FailedPreconditionError
from stratagem_proto.protocol import FIRST_VERSION, SESSION_ID_BYTES
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import ListVariablesResponse
from stratagem_proto.wire.tensors import decode_dtype

if TYPE_CHECKING:
    from stratagem._parameter_server.hosting.store import RemoteStore


class Training:
    """What the task that creates variables knows of their training.

    A server that was started again without what it had knows of no training. To create its
    variables anew beside those that other servers have kept would make a model of old and new
    values. So they do not exist before they get values from a checkpoint, or are assigned.

    Attributes:
        identifier: As in `CreateVariablesHeader`; empty before `begin`.
        unaware: The servers that are to be told of it.
        lost_by: The servers that know nothing of it, but had variables of it.
    """

    def __init__(self) -> None:
        """Know of none."""
        self.identifier = b""
        self.unaware: set[int] = set()
        self.lost_by: set[int] = set()
        self._withheld: set[str] = set()

    def begin(self, told: Mapping[int, bytes], trained: Set[int], task: str) -> None:
        """Go on with the training of an earlier run, or begin one.

        Args:
            told: What each server says that the training is, by its index.
            trained: The servers that have variables of the earlier run whose values have changed.
            task: The name of this task, for messages.

        Raises:
            AttachmentError: These variables belong to several trainings.
        """
        earlier = {told[server] for server in trained}
        if len(earlier) > 1:
            servers = " and ".join(f"/job:ps/task:{server}" for server in sorted(trained))
            raise AttachmentError(
                f"the servers {servers} have variables of different trainings, perhaps of "
                "checkpoints that do not belong together. Restart all servers, with one checkpoint "
                "or with none",
                task=task,
            )
        known = next(iter(earlier), b"")
        self.identifier = known or secrets.token_bytes(SESSION_ID_BYTES)
        others = {server for server, training in told.items() if training != self.identifier}
        if known:
            self.lost_by = others
        else:
            self.unaware = others

    def creatable(self, variables: Sequence[RemoteVariable]) -> list[RemoteVariable]:
        """Return the variables that may be created now; the others are withheld."""
        self.withhold(one for one in variables if one.place.server in self.lost_by)
        return [one for one in variables if one.name not in self._withheld]

    def withhold(self, variables: Iterable[RemoteVariable]) -> None:
        """Note that variables do not exist before they get values."""
        self._withheld.update(one.name for one in variables)

    def released(self, variables: Iterable[RemoteVariable]) -> list[RemoteVariable]:
        """Return those of variables that are withheld, and withhold them no more."""
        released = [one for one in variables if one.name in self._withheld]
        self._withheld.difference_update(one.name for one in released)
        return released

    @property
    def is_whole(self) -> bool:
        """Whether no variables are withheld."""
        return not self._withheld

    def require_all(self, what: str) -> None:
        """Check that no variables are withheld, as `what` needs; raise as `require`."""
        if self._withheld:
            raise self._lacking(min(self._withheld), what)

    def require(self, variables: Iterable[RemoteVariable]) -> None:
        """Check that variables exist.

        Raises:
            FailedPreconditionError: One is withheld.
        """
        for variable in variables:
            if variable.name in self._withheld:
                raise self._lacking(variable.name, "the program", [variable.place.server])

    def _lacking(
        self, name: str, what: str, servers: Sequence[int] = ()
    ) -> FailedPreconditionError:
        lost = " and ".join(f"/job:ps/task:{one}" for one in servers or sorted(self.lost_by))
        return FailedPreconditionError(
            f"{what} needs {name!r}, which {lost} had before it was started again without it, "
            "while other servers have kept the values of an earlier run. First restore a "
            "checkpoint by strategy.restore(), or assign a value to it; or restart all servers to "
            "begin anew. A server with --durability log loses nothing when it is started again",
            variable=name,
        )


_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
_SHOWN_NAMES = 10

Listing = Callable[[], Mapping[int, ListVariablesResponse]]


class Attachment:
    """What this worker knows of the variables that the chief has created.

    Those who train make the same variables as the chief, in the same order. Others may make some of
    them, by their names.

    Args:
        membership: Which task this is.
        listing: Asks the servers what they host, by index of the server.
        seconds: How long to wait for the chief.
    """

    def __init__(self, membership: Membership, listing: Listing, seconds: float) -> None:
        self._worker = membership.name
        self._chief = membership.creator_place
        self._in_order = membership.trains
        self._listing = listing
        self._seconds = seconds
        self._created: dict[int, Found] = {}
        self._by_name: dict[str, Found] = {}

    def attach(self, wanted: Sequence[VariableSpec], mine: Origins) -> list[Found]:
        """Wait until the chief has created variables, and return them in the same order.

        `wanted` are the variables as this worker would have created them; it has `mine` already.

        Raises:
            AttachmentError: A variable differs, which is said at once; some are missing after the
                time to wait; or it may be that of another module, since the chief has more of the
                same name.
        """
        if self._missing(wanted):
            whom = f"the chief, {self._chief}, to create {wanted[0].name!r}"
            task, _, _ = self._chief.partition(" at ")
            awaited = Awaited.one_task(task, f"variable {wanted[0].name!r}", "program")
            with Wait(self._worker, whom, self._seconds, awaited):
                self._await(wanted)
        self._require_told_apart(origins_of(wanted), mine)
        return [found for spec in wanted if (found := self._found(spec)) is not None]

    def forget(self, ordinals: Collection[int]) -> None:
        """Note that the chief has deleted variables, by their places in its order."""
        for ordinal in ordinals:
            self._created.pop(ordinal, None)
        self._by_name = {found.spec.name: found for found in self._created.values()}

    def _require_told_apart(self, wanted: Origins, mine: Origins) -> None:
        theirs = self._origins()
        batches = batches_of(wanted, theirs)
        self._refuse(
            exchanged(wanted, theirs) or lacking({**mine, **wanted}, theirs, None, batches)
        )

    def doubtful(self, wanted: Origins) -> list[str]:
        """Return the names of what only its order tells from others of the chief's."""
        return doubtful(wanted, self._origins())

    def require_all(self, mine: Origins, phase: int | None) -> None:
        """Check that the chief has no namesakes of variables that this worker has not made.

        Those that it made in later phases do not count; see `lacking`.

        Raises:
            AttachmentError: It has.
        """
        self._look()
        self._refuse(lacking(mine, self._origins(), phase))

    def _origins(self) -> dict[str, Origin]:
        return origins_of(found.spec for found in self._created.values())

    def _refuse(self, confusion: Confusion | None) -> None:
        if confusion:
            message = confusion.sentence(f"{self._worker}'s program", "the chief's program")
            raise AttachmentError(message, variable=confusion.name, task=self._worker)

    def _found(self, spec: VariableSpec) -> Found | None:
        found = self._created.get(spec.ordinal)
        if self._in_order or (found is not None and found.spec.name == spec.name):
            return found
        return self._by_name.get(spec.name)

    def _await(self, wanted: Sequence[VariableSpec]) -> None:
        give_up_at = time.monotonic() + self._seconds
        pause = _FIRST_PAUSE_SECONDS
        while missing := self._missing(wanted):
            if time.monotonic() >= give_up_at:
                raise self._lacking(missing, len(wanted))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            self._look()

    def _missing(self, wanted: Sequence[VariableSpec]) -> list[VariableSpec]:
        if any(self._found(spec) is None for spec in wanted):
            self._look()
        missing = []
        for spec in wanted:
            found = self._found(spec)
            if found is None:
                missing.append(spec)
            elif traits(found.spec) != traits(spec):
                raise self._difference(found.spec, spec)
        return missing

    def _look(self) -> None:
        self._created = find(self._listing())
        self._by_name = {found.spec.name: found for found in self._created.values()}

    def _difference(self, theirs: VariableSpec, ours: VariableSpec) -> AttachmentError:
        return AttachmentError(
            f"variable {ours.ordinal} of the chief's program, or of one before it, is "
            f"{described(theirs)}, but of {self._worker}'s it is {described(ours)}; run the same "
            "program on all workers, with the same settings. If all do, the servers still hold "
            "what an earlier run has left: restart them to begin anew",
            variable=ours.name,
            task=self._worker,
        )

    def _lacking(self, missing: Sequence[VariableSpec], wanted: int) -> AttachmentError:
        names = ", ".join(spec.name for spec in missing[:_SHOWN_NAMES])
        rest = len(missing) - _SHOWN_NAMES
        return AttachmentError(
            f"{self._worker} waited {self._seconds:g} s for the chief to create "
            f"{wanted} variables; {len(missing)} are missing: {names}"
            f"{f' and {rest} more' if rest > 0 else ''}. Check that the chief runs the "
            "same program and has not failed",
            variable=missing[0].name,
            task=self._worker,
        )


class Found(NamedTuple):
    """A variable that the chief created, the index of its server, and its version."""

    server: int
    spec: VariableSpec
    version: int


def find(listing: Mapping[int, ListVariablesResponse]) -> dict[int, Found]:
    """Return the variables that a chief created, by their place in its order."""
    return {
        info.spec.ordinal: Found(server, info.spec, info.version)
        for server, listed in listing.items()
        for info in listed.variables
        if info.spec.HasField("ordinal")
    }


def traits(spec: VariableSpec) -> tuple[object, ...]:
    """Return that in which the programs of all tasks and runs have to agree."""
    tensor = spec.tensor
    return (
        spec.name,
        spec.module_path,
        tensor.dtype,
        tuple(tensor.shape),
        tuple(spec.partition.full_shape),
        # Those of tables follow what the servers have.
        None if spec.HasField("table") else PartRows.from_spec(spec),
    )


def described(spec: VariableSpec) -> str:
    """Return these traits for a message."""
    owner = f" in {spec.module_path}" if spec.module_path else ""
    dtype = str(decode_dtype(spec.tensor.dtype)).removeprefix("torch.")
    part = f"{dtype}, shape {tuple(spec.tensor.shape)}"
    if spec.HasField("partition"):
        whole = tuple(spec.partition.full_shape)
        part += f" {PartRows.from_spec(spec)} of {whole}"
    return f"{spec.name!r} ({part}{owner})"


def follow(variables: Sequence[RemoteVariable], found: Sequence[Found]) -> None:
    """Let tables be placed and divided as they are on the servers already.

    An earlier release divided them in another way, and put them elsewhere.

    Raises:
        AttachmentError: The parts of a table are not divided in one way.
    """
    pairs = list(zip(variables, found, strict=True))
    for variable, one in pairs:
        variable.follow(one.server, one.spec)
    for variable, one in pairs:
        if variable.spec.partition != one.spec.partition:
            raise AttachmentError(
                f"the servers have {described(one.spec)}, where the other parts of the table leave "
                f"{described(variable.spec)}; restart the servers to begin anew, or restore a "
                "checkpoint",
                variable=variable.name,
            )


_LOG = logging.getLogger("stratagem")

# What programs of this process created, by the server's address and the name. What is there belongs
# to a run that goes on, so that it can be no other's.
_in_use: WeakValueDictionary[tuple[str, str], RemoteVariable] = WeakValueDictionary()


class EarlierRun:
    """Lets a chief that was started again go on with the variables it had created."""

    def __init__(self, task: str, store: RemoteStore) -> None:
        self._task = task
        self._store = store
        self._found: dict[int, Found] | None = None

    def kept(self, wanted: Sequence[RemoteVariable]) -> list[RemoteVariable]:
        """Return those variables that need not be created, because they are there.

        Raises:
            AttachmentError: The servers hold the variables of another program.
        """
        if self._found is None:
            self._found = self._look()
        found = self._found
        kept = [one for one in wanted if one.place.ordinal in found]
        self._require_free(found, wanted)
        those = [found[variable.place.ordinal] for variable in kept]
        for one, variable in zip(those, kept, strict=True):
            if traits(one.spec) != traits(variable.spec):
                raise self._difference(one, variable.spec)
        follow(kept, those)
        for one, variable in zip(those, kept, strict=True):
            if one.server != variable.place.server:
                raise self._difference(one, variable.spec)
        self._refuse(exchanged(origins_of(one.spec for one in kept), self._origins()))
        return kept

    def _require_free(self, found: Mapping[int, Found], wanted: Sequence[RemoteVariable]) -> None:
        """Check that no other variable has the name of one, on another server perhaps."""
        places = {one.spec.name: one for one in found.values()}
        for variable in wanted:
            other = places.get(variable.name)
            if other is not None and other.spec.ordinal != variable.place.ordinal:
                raise AttachmentError(
                    f"the servers still hold {variable.name!r} of an earlier run, in which it was "
                    f"variable {other.spec.ordinal} in the order of creation; in {self._task}'s "
                    f"program it is variable {variable.place.ordinal}. That run had forgotten what "
                    "it had made before, or made other things first. Restart the servers to begin "
                    "anew",
                    variable=variable.name,
                    task=self._task,
                )

    def require_all(self, mine: Origins, phase: int) -> None:
        """Check that the earlier run had no namesakes of variables that this one has not made.

        Those that it made in later phases do not count; see `lacking`.

        Raises:
            AttachmentError: It had.
        """
        if self._found:
            self._refuse(lacking(mine, self._origins(), phase))

    def _origins(self) -> dict[str, Origin]:
        return origins_of(one.spec for one in (self._found or {}).values())

    def _refuse(self, confusion: Confusion | None) -> None:
        if confusion:
            there = "an earlier run, whose variables the servers still hold,"
            message = confusion.sentence(f"{self._task}'s program", there)
            raise AttachmentError(message, variable=confusion.name, task=self._task)

    def forget(self, ordinals: Collection[int]) -> None:
        """Note that variables of this run are deleted, by their places in the order."""
        if self._found is not None:
            for ordinal in ordinals:
                self._found.pop(ordinal, None)

    def require_unused(self, variables: Sequence[RemoteVariable]) -> None:
        """Check that no other strategy of this process has variables of their names.

        Raises:
            AlreadyExistsError: One has, and has not been closed.
        """
        for variable in variables:
            if self._is_in_use(variable.place.server, variable.name):
                raise AlreadyExistsError(
                    f"variable {variable.name!r} on {variable.device_name} is used by "
                    "another strategy of this process; call close() of that one, or "
                    "ParameterServerStrategy.close_all() where a cell of a notebook makes its "
                    "strategy again. The new one then goes on with the values that the servers "
                    "have",
                    variable=variable.name,
                    task=self._task,
                )

    def take(self, variables: Sequence[RemoteVariable]) -> None:
        """Note that this run uses variables."""
        for variable in variables:
            _in_use[self._key(variable.place.server, variable.name)] = variable

    def _look(self) -> dict[int, Found]:
        # Whether a strategy is still in use must not depend on when cycles are collected.
        gc.collect()
        listing = self._store.listing()
        found = {
            ordinal: one
            for ordinal, one in find(listing).items()
            if not self._is_in_use(one.server, one.spec.name)
        }
        told = {server: listed.training for server, listed in listing.items()}
        # What was only created may be created again: the former chief may not have got further.
        trained = {one.server for one in found.values() if one.version != FIRST_VERSION}
        self._store.training.begin(told, trained, self._task)
        return self._without_unfilled(found)

    def _without_unfilled(self, found: dict[int, Found]) -> dict[int, Found]:
        """Delete what an earlier run created anew, and ended before it had values for it."""
        lost = self._store.training.lost_by
        unfilled = [one for one in found.values() if one.server in lost]
        self._store.delete((one.server, one.spec.name) for one in unfilled)
        return {ordinal: one for ordinal, one in found.items() if one.server not in lost}

    def _is_in_use(self, server: int, name: str) -> bool:
        user = _in_use.get(self._key(server, name))
        run = self._store.servers.runs.get(server)
        return user is not None and user.is_in_use(run)

    def _key(self, server: int, name: str) -> tuple[str, str]:
        return self._store.servers.addresses[server], name

    def _difference(self, found: Found, ours: VariableSpec) -> AttachmentError:
        return AttachmentError(
            "the servers still hold the variables of an earlier run, in which "
            f"variable {ours.ordinal} is {described(found.spec)} on "
            f"{found.spec.device}; in {self._task}'s program it is {described(ours)} "
            f"on {ours.device}. Restart the servers to begin anew, or run the earlier "
            "program to go on with it",
            variable=ours.name,
            task=self._task,
        )

    def report(self, kept: Sequence[RemoteVariable], created: int, withheld: int) -> None:
        """Log which variables have values of an earlier run, and what becomes of the others.

        Args:
            kept: Those that have; if there are none, there is nothing to log.
            created: How many are created.
            withheld: How many are not, because a server has lost theirs.
        """
        if not kept:
            return
        others = f"; the {created} others are created" if created else ""
        if withheld:
            others += f"; {withheld} that a server has lost have none before they are restored"
        _LOG.warning(
            "%s goes on with the values of an earlier run, which the servers kept, "
            "for %s%s. Restart the servers to begin anew, without --restore",
            self._task,
            ", ".join(repr(variable.name) for variable in kept[:3])
            + (f" and {len(kept) - 3} more variables" if len(kept) > 3 else ""),
            others,
        )
