"""What a replica does in each view, and how long a primary may answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_psserver.replication.exchange import Lease
from stratagem_psserver.replication.views import (
    Follow,
    Lead,
    Propose,
    alone,
    handed_over,
    is_backup,
    is_primary,
    next_move,
    with_backup,
)


def replica(index: int, run: int = 1) -> Replica:
    """A run of the process with a number; each run has a state of its own."""
    return Replica(index=index, instance=f"{index}.{run}".encode(), address=f"host-{index}:1")


ONE, OTHER = replica(0), replica(1)


def test_the_first_replica_leads() -> None:
    move = next_move(None, ONE)
    assert move == Propose(None, View(epoch=1, primary=ONE))
    assert isinstance(move, Propose) and next_move(move.following, ONE) == Lead(move.following)
    assert next_move(move.following, OTHER) == Follow(move.following)


def test_a_backup_follows_and_takes_over_only_by_another_view() -> None:
    view = with_backup(View(epoch=1, primary=ONE), OTHER)
    assert next_move(view, OTHER) == Follow(view)
    assert next_move(alone(view, OTHER), OTHER) == Lead(alone(view, OTHER))
    assert next_move(alone(view, OTHER), ONE) == Follow(alone(view, OTHER))


def test_a_primary_that_has_lost_its_state_leaves_the_task_to_its_backup() -> None:
    view = with_backup(View(epoch=1, primary=ONE), OTHER)
    move = next_move(view, replica(0, run=2))
    assert isinstance(move, Propose)
    assert not move.following.HasField("primary") and is_backup(move.following, OTHER)
    # The backup waits until no former primary can answer any more.
    assert next_move(move.following, OTHER) == Follow(move.following)
    assert next_move(move.following, replica(0, run=2)) == Follow(move.following)


def test_a_task_whose_only_state_is_lost_begins_anew() -> None:
    view = View(epoch=4, primary=ONE)
    again = replica(0, run=2)
    assert next_move(view, again) == Propose(view, alone(view, again))
    both_lost = View(epoch=5, backup=OTHER)
    again = replica(1, run=2)
    assert next_move(both_lost, again) == Propose(both_lost, alone(both_lost, again))


def test_a_primary_at_another_address_says_so() -> None:
    view = with_backup(View(epoch=1, primary=ONE), OTHER)
    moved = Replica(index=0, instance=ONE.instance, address="host-9:1")
    move = next_move(view, moved)
    assert isinstance(move, Propose)
    assert move.following.primary == moved and is_backup(move.following, OTHER)
    assert move.following.epoch == view.epoch + 1


@dataclass
class Task:
    """Two replicas and an arbiter.

    Attributes:
        view: What the arbiter has.
        runs: The present run of each process.
        has_state: The instances whose process has all that was acknowledged.
        primaries: The instance that was the primary of each epoch.
    """

    view: View | None = None
    runs: list[int] = field(default_factory=lambda: [1, 1])
    has_state: set[bytes] = field(default_factory=set)
    primaries: dict[int, bytes] = field(default_factory=dict)

    def act(self, event: str, index: int) -> None:
        me = replica(index, self.runs[index])
        if event == "restart":
            self.has_state.discard(me.instance)
            self.runs[index] += 1
        elif event == "move":
            self._move(me)
        elif self.view is not None and is_primary(self.view, me):
            self._lead(event, me)
        elif event == "take over" and self.view is not None and is_backup(self.view, me):
            self._replace(alone(self.view, me))

    def _move(self, me: Replica) -> None:
        move = next_move(self.view, me)
        if isinstance(move, Propose):
            if is_primary(move.following, me) and not self._others_have_state(me):
                # Nobody has anything, so that an empty state is all that there is.
                self.has_state = {me.instance}
            self._replace(move.following)
        elif isinstance(move, Lead):
            assert me.instance in self.has_state

    def _others_have_state(self, me: Replica) -> bool:
        named = [self.view.primary, self.view.backup] if self.view is not None else []
        living = {replica(index, run).instance for index, run in enumerate(self.runs)}
        return any(one.instance in living & self.has_state for one in named if one != me)

    def _lead(self, event: str, me: Replica) -> None:
        assert self.view is not None
        other = replica(1 - me.index, self.runs[1 - me.index])
        if event == "take on" and not self.view.HasField("backup"):
            self.has_state.add(other.instance)
            self._replace(with_backup(self.view, other))
        elif event == "go on alone" and self.view.HasField("backup"):
            self.has_state = {me.instance}
            self._replace(alone(self.view, me))
        elif event == "hand over" and self.view.HasField("backup"):
            self._replace(handed_over(self.view))

    def _replace(self, following: View) -> None:
        assert following.epoch == (self.view.epoch if self.view else 0) + 1
        self.view = following
        if following.HasField("primary"):
            self.primaries.setdefault(following.epoch, following.primary.instance)


EVENTS = st.sampled_from(["move", "restart", "take on", "go on alone", "hand over", "take over"])


@given(st.lists(st.tuples(EVENTS, st.integers(0, 1)), max_size=60))
def test_whoever_leads_has_all_that_was_acknowledged_or_nobody_has(
    events: list[tuple[str, int]],
) -> None:
    task = Task()
    for event, index in events:
        task.act(event, index)
        if task.view is not None and task.view.HasField("primary"):
            living = replica(task.view.primary.index, task.runs[task.view.primary.index])
            if is_primary(task.view, living):
                assert living.instance in task.has_state


def test_a_lease_counts_from_when_a_beacon_was_sent() -> None:
    lease = Lease(seconds=0.75, began=10.0)
    assert not lease.is_valid(10.0)
    first, second = lease.send(10.0), lease.send(10.2)
    lease.acknowledge(first)
    assert lease.is_valid(10.74) and not lease.is_valid(10.75)
    lease.acknowledge(second)
    lease.acknowledge(first)
    assert lease.is_valid(10.94) and not lease.is_valid(10.95)
    assert lease.silence(10.95) == 0.75
