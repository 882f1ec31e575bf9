"""The views of a task, and what a replica does in each; without clocks and the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stratagem_proto.v1.replication_pb2 import Replica, View


@dataclass(frozen=True)
class Lead:
    """Be the primary of a view."""

    view: View


@dataclass(frozen=True)
class Follow:
    """Follow the primary of a view, if it has one, or wait for the next view."""

    view: View


@dataclass(frozen=True)
class StandAside:
    """Leave a task to others."""

    view: View


@dataclass(frozen=True)
class Propose:
    """Ask the arbiter for another view."""

    present: View | None
    following: View


Move: TypeAlias = Lead | Follow | StandAside | Propose


def next_move(view: View | None, me: Replica, follows: bool = True) -> Move:
    """Return what a replica does in a view.

    The replicas of a task have different indices, and at most one process has an index. So an
    instance of this index that is another one than this process has ended with what it had in
    memory.

    Args:
        view: The present view; None before there was one.
        me: The replica.
        follows: Whether it is to get the state of the task, if it has not got it.
    """
    move = _move(view, me)
    if isinstance(move, Follow) and not follows and not is_backup(move.view, me):
        return StandAside(move.view)
    return move


def _move(view: View | None, me: Replica) -> Move:
    if view is None:
        return Propose(None, View(epoch=1, primary=me))
    has_backup, has_primary = view.HasField("backup"), view.HasField("primary")
    if is_primary(view, me):
        if view.primary == me:
            return Lead(view)
        # At another address than before.
        backup = view.backup if has_backup else None
        return Propose(view, View(epoch=view.epoch + 1, primary=me, backup=backup))
    if is_backup(view, me) or (has_primary and view.primary.index != me.index):
        return Follow(view)
    if not (has_backup and view.backup.index != me.index):
        return Propose(view, alone(view, me))
    # The state is that of another replica, which need not wait for a primary that has ended.
    if has_primary:
        return Propose(view, View(epoch=view.epoch + 1, backup=view.backup))
    return Follow(view)


def is_primary(view: View, replica: Replica) -> bool:
    return view.HasField("primary") and view.primary.instance == replica.instance


def is_backup(view: View, replica: Replica) -> bool:
    return view.HasField("backup") and view.backup.instance == replica.instance


def predecessors(view: View | None, me: Replica) -> list[Replica]:
    """Return the replicas that a view names and that had the index of a replica before it."""
    named = [view.primary, view.backup] if view is not None else []
    return [
        one for one in named if one.index == me.index and one.instance not in (b"", me.instance)
    ]


def alone(view: View, primary: Replica) -> View:
    """Return the view after another one in which a replica is the primary, without a backup."""
    return View(epoch=view.epoch + 1, primary=primary)


def with_backup(view: View, backup: Replica) -> View:
    """Return the view after another one in which the primary has a backup."""
    return View(epoch=view.epoch + 1, primary=view.primary, backup=backup)


def handed_over(view: View) -> View:
    """Return the view after another one whose primary leaves the task to its backup."""
    return alone(view, view.backup)
