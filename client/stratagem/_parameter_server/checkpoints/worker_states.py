"""What each worker wants a checkpoint to have of it: how far it has read its data."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from stratagem._cluster.membership import Membership
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.v1.session_pb2 import WorkerReport, WorkerState

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
        count = self._membership.num_trainers
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


def states_of(reports: Mapping[str, bytes], applied: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Return by task the states that fit to the synchronous steps that each server has applied."""
    found = {}
    for task, report in reports.items():
        for state in WorkerReport.FromString(report).states:
            if all(_is_applied(step, applied) for step in state.contributed.items()):
                found[task] = json.loads(state.content)
    return found


def _is_applied(step: tuple[str, int], applied: Sequence[Mapping[str, int]]) -> bool:
    group, number = step
    return all(number <= groups.get(group, 0) for groups in applied)
