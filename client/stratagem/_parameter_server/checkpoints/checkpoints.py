"""Saving and restoring what servers hold, and what each worker wants to be kept of it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

import torch

from stratagem._checkpoints.deferred import CheckpointEntry
from stratagem._checkpoints.files import written_elsewhere
from stratagem._checkpoints.restore_status import RestoreStatus
from stratagem._cluster.membership import Membership
from stratagem._core.names import UniqueNames
from stratagem._parameter_server.checkpoints.restoring import ClusterRestorer
from stratagem._parameter_server.checkpoints.saving import ClusterSaver, Contents, Series
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.v1.session_pb2 import WorkerReport, WorkerState

Buffers = Iterable[tuple[str, torch.Tensor]]


class ClusterCheckpoints:
    """The checkpoints of one strategy.

    `variables` are those of this program, as they are created; `buffers` are those of its modules,
    which are in this process. `states` is what this worker wants to be kept besides.
    """

    def __init__(
        self,
        membership: Membership,
        store: RemoteStore,
        variables: Sequence[RemoteVariable],
        buffers: Buffers,
        names: UniqueNames,
    ) -> None:
        self._names = names
        self._membership = membership
        self._store = store
        self._variables = variables
        self._buffers = buffers
        self._saver = ClusterSaver(store.servers, store.peer_seconds)
        self._restorer: ClusterRestorer | None = None
        self.states = WorkerStates(membership, store)

    def save(
        self, root: str | os.PathLike[str], series: Series, extra: Mapping[str, Any]
    ) -> Future[None]:
        """Save what the servers hold, and this task's buffers, if it is the chief."""
        if not self._membership.is_chief:
            return written_elsewhere()
        self._store.servers.require_all_visible("a checkpoint")
        self._store.training.require_all("a checkpoint")
        local = {name: value.detach().cpu().clone() for name, value in self._buffers}
        contents = Contents(local, extra, self._membership.num_training_tasks)
        return self._saver.save(root, contents, series)

    def restore(self, path: str | os.PathLike[str], strict: bool) -> RestoreStatus:
        """Give variables, optimizers and buffers what they have in a checkpoint."""
        restorer = ClusterRestorer(self._store, path, self._membership)
        missing = restorer.require_fit(self._variables, self._entries(), strict)
        restorer.require_told_apart(self._variables)
        self._names.warn_of(restorer.doubtful(self._variables))
        restorer.restore(self._variables, accounts=True)
        restorer.restore_buffers(self._entries())
        restorer.meet()
        self._restorer = restorer
        self.states.restore(restorer.checkpoint.index.workers)
        return RestoreStatus(restorer, missing, restorer.checkpoint.index.extra)

    def created(self, variables: Sequence[RemoteVariable]) -> None:
        """Restore variables that were made after a checkpoint was restored."""
        if self._restorer is not None and variables:
            self._restorer.require_told_apart_later(variables, self._variables)
            self._names.warn_of(self._restorer.doubtful(variables))
            self._restorer.restore(variables)
            self._store.refresh(variables)

    def before_use(self) -> None:
        """Check that what was made since a checkpoint was restored are all of their names."""
        if self._restorer is not None:
            self._restorer.require_told_apart(self._variables)

    def buffers_hosted(self) -> None:
        """Restore buffers that were made after a checkpoint was restored."""
        if self._restorer is not None:
            self._restorer.restore_buffers(self._entries())

    def close(self) -> None:
        """Wait for what is being written."""
        self._saver.wait()

    def _entries(self) -> list[CheckpointEntry]:
        return [CheckpointEntry.of_tensor(*named) for named in self._buffers]


_LOG = logging.getLogger("stratagem")

# Each request has it.
_MOST_BYTES = 1 << 16


@runtime_checkable
class Stateful(Protocol):
    """What goes on from a state, as iterators over distributed datasets do."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Go on from a state."""


class WorkerStates:
    """The states that this worker reports, after each of its steps and runs."""

    def __init__(self, membership: Membership, store: RemoteStore) -> None:
        self._membership = membership
        self._store = store
        self._registered: dict[str, Stateful] = {}
        self._deferred: dict[str, Any] = {}
        # As of the last two synchronous steps, or the last two runs.
        self._states: Sequence[WorkerState] = ()

    def register(self, name: str, stateful: Any) -> None:
        """Report the state of something from now on, in place of another.

        It goes on from what a checkpoint that was restored has by that name.

        Raises:
            InvalidTypeError: It has no state.
            InvalidArgumentError: JSON cannot express its state, or it is too large.
        """
        if not isinstance(stateful, Stateful):
            raise InvalidTypeError(
                f"{type(stateful).__name__} lacks state_dict() or load_state_dict(); "
                "register what has both, such as an iterator over a distributed dataset"
            )
        if name in self._deferred:
            stateful.load_state_dict(self._deferred.pop(name))
        wanted = {**self._registered, name: stateful}
        self._report([*self._states[:-1], self._now(wanted)])
        self._registered = wanted

    def restore(self, workers: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint has; warn if it is of other workers."""
        states = workers.get("states", {})
        count = self._membership.num_training_tasks
        if states and workers["count"] != count:
            _LOG.warning(
                "the checkpoint has the states of %d workers, such as how far they had "
                "read their data, but there are %d now; what was registered stays "
                "where it is",
                workers["count"],
                count,
            )
            return
        self._deferred = dict(states.get(self._membership.name, {}))
        for name in self._registered.keys() & self._deferred.keys():
            self._registered[name].load_state_dict(self._deferred.pop(name))
        if self._registered:
            self._report([self._now(self._registered)])

    def ran(self) -> None:
        """Report the states after a step or a run, which is still a part of it."""
        if not self._registered:
            return
        now, before = self._now(self._registered), self._states
        is_same_step = bool(before) and before[-1].contributed == now.contributed
        # One of an earlier step is needed while that of the last is not complete.
        self._report([*(before[:-1] if is_same_step else before[-1:]), now])

    def _now(self, wanted: Mapping[str, Stateful]) -> WorkerState:
        states = {name: one.state_dict() for name, one in wanted.items()}
        names = ", ".join(map(repr, states))
        try:
            content = json.dumps(states, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"the state of one of {names} is not what JSON can express: {error}; "
                "register something else, or keep it yourself"
            ) from error
        if len(content) > _MOST_BYTES:
            raise InvalidArgumentError(
                f"the states of {names} are {len(content)} bytes as JSON, but travel "
                f"with each request, and are {_MOST_BYTES} at most; register less"
            )
        contributed = self._store.step_tracker.contributed()
        return WorkerState(content=content, contributed=contributed)

    def _report(self, states: Sequence[WorkerState]) -> None:
        self._states = states
        # Without synchronous steps, the variables have all that is over.
        needed = states if states[-1].contributed else states[-1:]
        report = WorkerReport(states=needed)
        self._store.servers.steps.keep(report.SerializeToString())
