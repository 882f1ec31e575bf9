"""Faults that let workers go on too early, or steps have the wrong contributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem_psserver.checkpoint_gate import CheckpointGate
from stratagem_psserver.consistency.barriers import Barriers
from stratagem_psserver.consistency.rules import BoundedRule, Schedule, StepRule
from stratagem_psserver.synchronous.rounds import Rounds
from stratagem_psserver.synchronous.step_group import StepGroup
from tests.simulation.planted.plant import Plant, replaced

_admits = CheckpointGate.admits
_change = Schedule.change
_is_to_drop = StepGroup.is_to_drop


def _allows_one_more(self: BoundedRule, ahead: int) -> bool:
    return ahead > self.message.bound + 1


def _lets_pass(self: Barriers, name: str, generation: int, session_id: bytes) -> bool:
    return True


def _reads_at_once(self: Rounds, mark: Any, session_id: bytes = b"") -> bool:
    return True


def _counts_again(self: StepGroup, part: Any) -> bool:
    """Add what a worker that was started again contributes to what it had contributed."""
    if part.contribution.replicas_to_aggregate:
        return _is_to_drop(self, part)
    return False


def _owes_nothing(self: StepGroup, step: int, parts: Any) -> None:
    """Drop what was committed, and let others go on as if other servers had, too."""


def _admits_all(self: CheckpointGate, client: bytes, label: str, step: int, now: float) -> bool:
    """Hold no step back while all servers look for one moment."""
    hold, self._hold = self._hold, None
    admitted = _admits(self, client, label, step, now)
    self._hold = hold
    return admitted


def _changes_early(self: Schedule, rule: StepRule, begun: int) -> int:
    """Let a change apply to a step that some worker has begun already."""
    return _change(self, rule, begun - 1)


FAULTS: Mapping[str, Plant] = {
    "a bound is off by one": replaced(BoundedRule, "holds_back", _allows_one_more),
    "a barrier is forgotten": replaced(Barriers, "is_passed", _lets_pass),
    "reads do not wait for their step": replaced(Rounds, "is_applied", _reads_at_once),
    "a contribution counts twice": replaced(StepGroup, "is_to_drop", _counts_again),
    "dropped contributions are forgotten": replaced(StepGroup, "_owe", _owes_nothing),
    "steps are not held": replaced(CheckpointGate, "admits", _admits_all),
    "a change is a step too early": replaced(Schedule, "change", _changes_early),
}
