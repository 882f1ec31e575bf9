"""Variables on servers that take their values from a checkpoint, on all servers or none."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from stratagem._checkpoints.files import origins_in_checkpoint, origins_of
from stratagem._checkpoints.restoring import CheckpointEntry
from stratagem._checkpoints.series import STEPS
from stratagem._cluster.tasks import Membership
from stratagem._core.names import (
    Confusion,
    batches_of,
    doubtful,
    exchanged,
    lacking,
    surplus,
)
from stratagem._core.waiting import Awaited, AwaitedTask, Wait
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.variable import RemoteVariable, by_server
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.checkpoints import (
    CheckpointSelection,
    announce_restored,
    list_restored,
    restore_staged,
    stage_variables,
)
from stratagem_proto.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StratagemError,
)
from stratagem_proto.programs.optimizers import SlotName
from stratagem_proto.protocol import MAX_EXTRA_BYTES, SESSION_ID_BYTES
from stratagem_proto.v1.checkpoint_pb2 import ListRestoredResponse, TaskPosition, TrainingRun
from stratagem_storage.checkpoint.folder import Checkpoint, open_checkpoint
from stratagem_storage.checkpoint.policy import policy_of_environment
from stratagem_storage.checkpoint.wholes import Whole, whole_name, wholes_of
from stratagem_storage.stores import store_of
from stratagem_storage.stores.places import absolute_place, shared_place


class Restoration:
    """One checkpoint that servers restore in two phases: all read it, then all take it.

    With a run, it begins with the values, and tasks are so far in it.
    """

    def __init__(
        self,
        servers: ServerGroup,
        path: str,
        wanted: Mapping[int, CheckpointSelection],
        run: TrainingRun | None = None,
        positions: Sequence[TaskPosition] = (),
    ) -> None:
        self._servers = servers
        self._run, self._positions = run, positions
        self._path = path
        self._wanted = wanted
        self._name = secrets.token_bytes(SESSION_ID_BYTES)

    def stage(self, seconds: float) -> None:
        """Have all servers read their part, beside what they have, for as long as that takes.

        If one cannot, the error of it is raised, and nothing has changed anywhere.

        Args:
            seconds: How long a server of the last release may take, which cannot be asked again.
        """
        left = dict(self._wanted)
        try:
            with self._wait_for(left):
                while left:
                    for server, has_read in self._asked(self._path, left, seconds).items():
                        if has_read:
                            del left[server]
        except StratagemError:
            # Servers that cannot be told forget it with the session.
            with suppress(StratagemError):
                self._asked("", dict.fromkeys(self._wanted, CheckpointSelection()), seconds)
            raise

    def _asked(
        self, path: str, wanted: Mapping[int, CheckpointSelection], seconds: float
    ) -> Mapping[int, bool]:
        return self._servers.call_all(
            {
                server: stage_variables(self._name, path, each, _LOOK_SECONDS, seconds)
                for server, each in wanted.items()
            }
        )

    def _wait_for(self, left: Mapping[int, CheckpointSelection]) -> Wait:
        def missing() -> list[AwaitedTask]:
            return [AwaitedTask(f"/job:ps/task:{server}", "part") for server in [*left]]

        subject = f"the values of checkpoint {self._path!r}"
        awaited = Awaited(subject, missing, reason="part")
        return Wait(self._servers.identity.name, subject, awaited=awaited)

    def replace(self) -> None:
        """Have all servers replace what they have by what they have read.

        Raises:
            AbortedError: A server went away after it had read its part.
        """
        try:
            self._servers.call_all(
                {
                    server: restore_staged(self._name, self._run, self._positions)
                    for server in self._wanted
                }
            )
        except StratagemError as error:
            raise AbortedError(
                f"some servers may have restored {self._path!r}, but not all have: "
                f"{error.message}. Restore again before anything else"
            ) from error


_LOG = logging.getLogger("stratagem")

_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 2.0


class ClusterRestorer:
    """A checkpoint that the variables of a program take their values from.

    What is made later takes its value when it is made. The task that creates variables has the
    servers read it; the others wait.
    """

    def __init__(
        self, store: RemoteStore, path: str | os.PathLike[str], membership: Membership
    ) -> None:
        self._store = store
        self._membership = membership
        self._path = shared_place(absolute_place(path))
        self._checkpoint = open_checkpoint(self._path, policy_of_environment())
        if not store_of(self._path).is_file(self._path):
            # The latest may be another one by the time that it is read again.
            self._path = self._checkpoint.folder
        self._wholes = wholes_of(self._checkpoint.index)
        self._unused = set(self._wholes)
        self._origins = origins_in_checkpoint(self._checkpoint, self._wholes)
        self._strict = True
        self._checked = 0
        # The run that has begun with it, and what is told of it besides.
        self._run: TrainingRun | None = None
        self._told = TrainingRun()

    @property
    def checkpoint(self) -> Checkpoint:
        """What it is."""
        return self._checkpoint

    def tell(self, told: TrainingRun) -> None:
        """Have the run that begins with it be the one of a folder and of some tasks."""
        self._told = TrainingRun(folder=told.folder, tasks=told.tasks)
        self._told.ended = bool(told.folder) and self._checkpoint.index.ended

    def require_all_taken(
        self,
        variables: Sequence[RemoteVariable],
        buffers: Sequence[CheckpointEntry],
        optimizers: Collection[str],
    ) -> None:
        """Check that a program has made all that is in the checkpoint.

        Raises:
            FailedPreconditionError: There is a value of something else.
        """
        made = {whole_name(one.spec) for one in variables} | {one.name for one in buffers}
        other = [one.name for one in self._wholes.values() if (one.slot_of or one.name) not in made]
        slots = [SlotName.parse(one.name) for one in self._wholes.values() if one.slot_of in made]
        other += [str(one) for one in slots if one and one.optimizer not in optimizers]
        if other:
            raise FailedPreconditionError(
                f"{str(self._path)!r} has {len(other)} values of which this program has made "
                f"nothing, such as {min(other)!r}: it is of another model or another optimizer, "
                "or resume() came before all was made. Make the model and its optimizers first, "
                "or give resume() another folder"
            )

    @property
    def workers(self) -> Mapping[str, Any]:
        """The states of workers in the checkpoint; of a single one, whatever it was called."""
        workers = self._checkpoint.index.workers
        states = workers.get("states", {})
        if workers.get("count") == len(states) == self._membership.num_training_tasks == 1:
            return {**workers, "states": {self._membership.name: next(iter(states.values()))}}
        return workers

    def position_of_task(self) -> int:
        """Return how many steps of a program that resumes this task had taken.

        Raises:
            FailedPreconditionError: It was saved by another number of workers, or by a program that
                does not count its steps.
        """
        workers, name = self.workers, self._membership.name
        tasks, states = self._membership.num_training_tasks, workers.get("states", {})
        if workers and workers["count"] != tasks:
            raise FailedPreconditionError(
                f"{str(self._path)!r} was saved by {workers['count']} workers, and here are "
                f"{tasks}, whose shares of the data are others; start as many, or go on with it "
                "by strategy.restore(), and say where to begin: strategy.steps(stop, start=...)"
            )
        if STEPS in states.get(name, {}):
            return int(states[name][STEPS])
        facts = self._checkpoint.index.servers.values()
        if not workers or any(_run_of(one).folder for one in facts):
            return 0  # an imported one, or of a task that had not begun
        raise FailedPreconditionError(
            f"{str(self._path)!r} does not say how many steps {name} had taken, since it was saved "
            "by a program that neither called resume() nor counted them; go on with it by "
            "strategy.restore(), and say where to begin: strategy.steps(stop, start=...)"
        )

    def require_of_run(self) -> None:
        """Check that the run under way has begun with this series of checkpoints, or has saved it.

        Whoever joins the run gets its values, and not those of the checkpoint.

        Raises:
            FailedPreconditionError: The run has nothing to do with the checkpoint.
        """
        run, training = known_run(self._store.servers).run, self._store.training.identifier
        if _series_of(run.path) == _series_of(str(self._path)):
            return
        for facts in self._checkpoint.index.servers.values():
            saved = _run_of(facts)
            # Only the task that creates variables knows the training.
            is_same = not training or facts.get("training") == training.hex()
            if facts.get("run") is not None and is_same and saved.restoration == run.restoration:
                return
        began = f"with {run.path!r}" if run.path else "with no checkpoint"
        raise FailedPreconditionError(
            f"{self._membership.name} would join a run that is under way on the servers. It began "
            f"{began}, and {str(self._path)!r} was not saved in it, so that its values would be "
            "ignored. To begin anew with it, have all workers call strategy.roll_back(), or "
            "restart the servers"
        )

    def names(self) -> list[str]:
        """Return the names of what nothing has taken yet."""
        return sorted(self._unused)

    def forget(self, names: Collection[str]) -> None:
        """Leave out values, by the names of their variables; who took them is gone."""
        for name in names:
            self._wholes.pop(name, None)
            self._unused.discard(name)
        self._origins = {name: one for name, one in self._origins.items() if name not in names}
        self._checked = 0

    def require_fit(
        self, variables: Sequence[RemoteVariable], buffers: Sequence[CheckpointEntry], strict: bool
    ) -> list[str]:
        """Check that all values fit; return the names of those that are missing.

        Raises:
            NotFoundError: One is missing, and `strict` is set.
            InvalidArgumentError: One has another shape or dtype.
        """
        self._strict = strict
        wanted = [whole_name(variable.spec) for variable in variables]
        wanted += [buffer.name for buffer in buffers]
        missing = [name for name in wanted if name not in self._wholes]
        if strict and missing:
            raise NotFoundError(
                f"the checkpoint has no {', '.join(map(repr, missing))}; restore into "
                "the program that was saved, or pass strict=False to leave what it "
                "lacks as it is"
            )
        for variable in variables:
            self._require_shape(variable)
        return missing

    def require_told_apart(self, variables: Sequence[RemoteVariable]) -> None:
        """Check that all values are of the variables that they belong to, as far as is known.

        Args:
            variables: All that the program has made.

        Raises:
            InvalidArgumentError: Some values are of namesakes, or may be.
        """
        if self._checked == len(variables):
            return
        mine = origins_of(variable.spec for variable in variables)
        self._refuse(exchanged(mine, self._origins) or lacking(mine, self._origins))
        self._checked = len(variables)

    def require_told_apart_later(
        self, made: Sequence[RemoteVariable], variables: Sequence[RemoteVariable]
    ) -> None:
        """Likewise of what has just been made, after which others of the names may be.

        Args:
            made: What has been made.
            variables: All that the program has made, these included.
        """
        mine = origins_of(variable.spec for variable in variables)
        new = origins_of(variable.spec for variable in made)
        batches = batches_of(new, self._origins)
        self._refuse(
            exchanged(new, self._origins)
            or lacking(mine, self._origins, None, batches)
            or (surplus(mine, self._origins) if self._strict else None)
        )

    def doubtful(self, variables: Sequence[RemoteVariable]) -> list[str]:
        """Return the names of those variables that only their order tells from others."""
        return doubtful(origins_of(variable.spec for variable in variables), self._origins)

    def _refuse(self, confusion: Confusion | None) -> None:
        if confusion:
            message = confusion.sentence("this program", "the checkpoint")
            raise InvalidArgumentError(message, variable=confusion.name)

    def _require_shape(self, variable: RemoteVariable) -> None:
        spec, name = variable.spec, whole_name(variable.spec)
        whole = self._wholes.get(name)
        split = spec.HasField("partition")
        shape = tuple(spec.partition.full_shape if split else spec.tensor.shape)
        if whole and (whole.shape, whole.dtype) != (shape, variable.dtype):
            raise InvalidArgumentError(
                f"the checkpoint has {name!r} with shape {whole.shape} and dtype "
                f"{whole.dtype}, but here it has shape {shape} and dtype "
                f"{variable.dtype}; restore into the model that was saved",
                variable=name,
            )

    def restore(
        self,
        variables: Iterable[RemoteVariable],
        positions: Sequence[TaskPosition] | None = None,
    ) -> None:
        """Have servers read the values of variables, and their optimizers' state.

        No server replaces any before all have read theirs. With positions a run begins, in which
        tasks are so far in their counted steps; servers go back to the account of data, too.

        Raises:
            AbortedError: A server went away after that, when others had replaced them.
            StratagemError: A server cannot read them; all are as before.
        """
        known = [one for one in variables if whole_name(one.spec) in self._wholes]
        if self._membership.creates:
            wanted = {
                server: CheckpointSelection([variable.name for variable in group])
                for server, group in by_server(known).items()
            }
            if positions is not None:
                wanted = {
                    one: wanted.get(one, CheckpointSelection())
                    for one in self._store.servers.called
                }
                if self._checkpoint.index.servers:
                    wanted |= self._with_accounts(wanted)
            self._run = None if positions is None else self._new_run()
            restoration = Restoration(
                self._store.servers, str(self._path), wanted, self._run, positions or ()
            )
            with self._store.filling(known):
                restoration.stage(self._store.peer_seconds)
                restoration.replace()
        for variable in known:
            variable.outdate()
        self.take(known)

    def take(self, variables: Iterable[RemoteVariable]) -> None:
        """Note that variables need nothing of the checkpoint any more."""
        for variable in variables:
            whole = self._wholes.get(whole_name(variable.spec))
            if whole is not None:
                self._use(whole)

    def _with_accounts(
        self, wanted: Mapping[int, CheckpointSelection]
    ) -> dict[int, CheckpointSelection]:
        servers, parts = self._store.servers, self._checkpoint.index.servers
        fits = len(parts) == len(servers)
        if not fits and any(map(_has_unended, parts.values())):
            _LOG.warning(
                "%d servers wrote %s, but there are %d: what scheduled functions had "
                "drawn of data that is read exactly once counts as read, also where it "
                "was not known yet whether they had ended",
                len(parts),
                self._path,
                len(servers),
            )
        keeper = servers.used[0]
        return {
            server: replace(
                wanted.get(server, CheckpointSelection()), data=server == keeper, closures=fits
            )
            for server in servers.called
        }

    def _use(self, whole: Whole) -> None:
        self._unused.discard(whole.name)
        slots = (one.name for one in self._wholes.values() if one.slot_of == whole.name)
        self._unused.difference_update(slots)

    def restore_buffers(self, buffers: Iterable[CheckpointEntry]) -> None:
        """Give this task's buffers their values."""
        for buffer in buffers:
            if buffer.name in self._unused:
                value = self._wholes[buffer.name].read(self._checkpoint)
                buffer.require_fit(value)
                buffer.write(value)
                self._unused.discard(buffer.name)

    def _new_run(self) -> TrainingRun:
        extra = json.dumps(dict(self._checkpoint.index.extra))
        return TrainingRun(
            restoration=secrets.token_bytes(SESSION_ID_BYTES),
            path=str(self._path),
            extra=extra if len(extra) <= MAX_EXTRA_BYTES else "",
            folder=self._told.folder,
            tasks=self._told.tasks,
            ended=self._told.ended,
        )

    def announce(self) -> None:
        """Tell the other tasks that all is restored, and that a run has begun with it."""
        self._store.servers.on_all(lambda: announce_restored(self._identity, self._run))

    def await_chief(self, of_any: bool) -> None:
        """Wait until the chief has restored the checkpoint.

        Args:
            of_any: Whether a run that has begun with another one, or with none, will do as well,
                since this task joins it.

        Raises:
            DeadlineExceededError: The chief has not in `peer_seconds`.
        """
        path = repr(str(self._path))
        _await_chief(
            self._store,
            self._membership,
            f"restore {path}",
            f"the chief has not restored {path}; call restore() on all workers",
            lambda one: self._identity in one.identities or (of_any and one.HasField("run")),
        )

    @property
    def _identity(self) -> str:
        files: Mapping[str, object] = self._checkpoint.index.files
        return self._checkpoint.index.identity or f"{self._path}: {files}"


def await_run(store: RemoteStore, membership: Membership, folder: str) -> None:
    """Wait until the chief has begun a run on all servers.

    Raises:
        DeadlineExceededError: It has not in `peer_seconds`.
    """
    deed = f"resume from {folder!r}"
    missing = f"the chief has not resumed from {folder!r}; call resume() on all workers"
    _await_chief(store, membership, deed, missing, lambda one: one.HasField("run"))


def _await_chief(
    store: RemoteStore,
    membership: Membership,
    deed: str,
    missing: str,
    is_known: Callable[[ListRestoredResponse], bool],
) -> None:
    """Wait until all servers know of what the chief does, and agree on the run.

    Raises:
        DeadlineExceededError: They do not in `peer_seconds`; `missing` says what to do.
    """
    servers, seconds = store.servers, store.peer_seconds
    chief, _, _ = membership.creator_place.partition(" at ")
    awaited = Awaited.one_task(chief, f"call to {deed}", "program")
    give_up_at = time.monotonic() + seconds
    with Wait(servers.identity.name, f"the chief to {deed}", seconds, awaited):
        while True:
            # A server that was started again without what it had is in no run, and knows of no
            # restoration, before the chief has restored it.
            answers = ask_all(servers)
            if all(map(is_known, answers.values())) and not half_restored(answers):
                return
            if time.monotonic() >= give_up_at:
                what, _, advice = missing.partition("; ")
                raise DeadlineExceededError(f"{what} in {seconds:g} s; {advice}")
            time.sleep(_PAUSE_SECONDS)


def _run_of(facts: Mapping[str, Any]) -> TrainingRun:
    """Return the run in which a server has written its part of a checkpoint."""
    return TrainingRun.FromString(b64decode(facts.get("run") or ""))


def _series_of(path: str) -> str:
    """Return the folder of the checkpoints that follow one another, of one of them."""
    return path.rstrip("/").rpartition("/")[0]


def known_run(servers: ServerGroup) -> ListRestoredResponse:
    """Ask a server which run has begun, what was restored, and how far this task is."""
    # A task that sees no server at all is told what hides them.
    visible = next(iter(servers.called), servers.used[0])
    return servers.call(visible, list_restored())


def ask_all(servers: ServerGroup) -> dict[int, ListRestoredResponse]:
    """Ask all servers the same, by task."""
    return servers.on_all(list_restored)


def half_restored(answers: Mapping[int, ListRestoredResponse]) -> str:
    """Return which servers have begun the run and which have not, as a clause; "" if all agree.

    Whoever restores may end when some servers have replaced their values, and others have not.
    """
    if len({one.run.restoration for one in answers.values()}) <= 1:
        return ""
    told = (
        f"/job:ps/task:{server} has {one.run.path!r}"
        if one.run.restoration
        else f"/job:ps/task:{server} has restored nothing"
        for server, one in answers.items()
    )
    return f"a restoration has ended in its midst: {', '.join(told)}"


def _has_unended(state: Mapping[str, Any]) -> bool:
    """Whether a server knew of functions that had read data and not ended."""
    ledgers = state.get("data", {}).values()
    return any(one["holders"] for each in ledgers for one in each["passes"].values())
