"""What servers do with a task that moves between them, in any order of events."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_psserver.replication.views import (
    Follow,
    Lead,
    Propose,
    StandAside,
    alone,
    handed_over,
    is_backup,
    is_primary,
    next_move,
    with_backup,
)

SERVERS = 3


def replica(number: int, run: int) -> Replica:
    """A run of the process of a server; each run has a state of its own."""
    return Replica(index=number, instance=f"{number}.{run}".encode(), address=f"host-{number}:1")


def test_a_server_leaves_alone_what_is_not_to_move_to_it() -> None:
    view = View(epoch=3, primary=replica(0, 1))
    assert next_move(view, replica(1, 1), follows=False) == StandAside(view)
    assert next_move(view, replica(1, 1), follows=True) == Follow(view)
    # The one that has it goes on, and one that may have to take over follows in any case.
    assert next_move(view, replica(0, 1), follows=False) == Lead(view)
    named = with_backup(view, replica(1, 1))
    assert next_move(named, replica(1, 1), follows=False) == Follow(named)


def test_a_server_that_comes_back_without_its_state_does_not_take_what_has_moved_away() -> None:
    view = handed_over(with_backup(View(epoch=3, primary=replica(0, 1)), replica(1, 1)))
    assert next_move(view, replica(0, 2), follows=False) == StandAside(view)


@dataclass
class MovingTask:
    """A task, its servers and the arbiter.

    Attributes:
        view: What the arbiter has.
        runs: The present run of each server.
        invited: The servers to which the task is to move.
        has_state: The instances whose process has all that was acknowledged.
    """

    view: View = field(default_factory=lambda: View(epoch=1, primary=replica(0, 1)))
    runs: list[int] = field(default_factory=lambda: [1] * SERVERS)
    invited: set[int] = field(default_factory=set)
    has_state: set[bytes] = field(default_factory=lambda: {replica(0, 1).instance})

    def act(self, event: str, number: int) -> None:
        me = replica(number, self.runs[number])
        if event == "restart":
            self.has_state.discard(me.instance)
            self.runs[number] += 1
        if event in ("restart", "give up"):
            self.invited.discard(number)
        elif event == "invite":
            self.invited.add(number)
        else:
            self._decide(event, me)

    def _decide(self, event: str, me: Replica) -> None:
        match event:
            case "move":
                self._move(me)
            case "take over" if is_backup(self.view, me):
                self._replace(alone(self.view, me))
            case "follow" if self._follows(me):
                self._follow(me)
            case "go on alone" if is_primary(self.view, me) and self.view.HasField("backup"):
                self.has_state = {me.instance}
                self._replace(alone(self.view, me))
            case "hand over" if is_primary(self.view, me) and self._backup_has_state():
                self._replace(handed_over(self.view))

    def _follows(self, me: Replica) -> bool:
        move = next_move(self.view, me, me.index in self.invited)
        return isinstance(move, Follow) and self._primary_lives()

    def _primary_lives(self) -> bool:
        primary = self.view.primary
        return is_primary(self.view, replica(primary.index, self.runs[primary.index]))

    def _follow(self, me: Replica) -> None:
        """The primary takes on a server that has caught up, one at a time."""
        if not self.view.HasField("backup"):
            self.has_state.add(me.instance)
            self._replace(with_backup(self.view, me))

    def _backup_has_state(self) -> bool:
        return self.view.HasField("backup") and self.view.backup.instance in self.has_state

    def _move(self, me: Replica) -> None:
        move = next_move(self.view, me, me.index in self.invited)
        if isinstance(move, Propose):
            if is_primary(move.following, me) and not self._others_have_state(me):
                # Nobody has anything, so that an empty state is all that there is.
                self.has_state = {me.instance}
            self._replace(move.following)
        elif isinstance(move, Lead):
            assert me.instance in self.has_state

    def _others_have_state(self, me: Replica) -> bool:
        living = {replica(number, run).instance for number, run in enumerate(self.runs)}
        named = (self.view.primary, self.view.backup)
        return any(one.instance in living & self.has_state for one in named if one != me)

    def _replace(self, following: View) -> None:
        assert following.epoch == self.view.epoch + 1
        self.view = following


EVENTS = st.sampled_from(
    ["move", "restart", "invite", "give up", "follow", "go on alone", "hand over", "take over"]
)


@given(st.lists(st.tuples(EVENTS, st.integers(0, SERVERS - 1)), max_size=80))
def test_whoever_serves_a_moving_task_has_all_that_was_acknowledged_or_nobody_has(
    events: list[tuple[str, int]],
) -> None:
    task = MovingTask()
    for event, number in events:
        task.act(event, number)
        if task.view.HasField("primary"):
            serving = replica(task.view.primary.index, task.runs[task.view.primary.index])
            assert not is_primary(task.view, serving) or serving.instance in task.has_state
