"""What replicas say of themselves, in words."""

from __future__ import annotations

from stratagem_proto.v1.replication_pb2 import (
    STANDING_CATCHING_UP,
    STANDING_FENCED,
    STANDING_PRIMARY,
    ReplicationStatus,
    Standing,
)

_WORDS: dict[Standing, str] = {
    STANDING_CATCHING_UP: "catches up",
    STANDING_FENCED: "may not answer clients at present",
}


def standing_word(status: ReplicationStatus) -> str:
    """Return what a replica is, for instance "backup"."""
    name = Standing.Name(status.standing).removeprefix("STANDING_").lower()
    return _WORDS.get(status.standing, name)


def described(status: ReplicationStatus) -> str:
    """Return what a replica is, in which epoch, and how far the backup is behind."""
    words = [standing_word(status)]
    if status.HasField("view"):
        words.append(f"epoch {status.view.epoch}")
    if status.is_movable:
        words.append(f"server {status.replica.index}")
    elif status.standing == STANDING_PRIMARY and not status.view.HasField("backup"):
        words.append("no backup")
    if status.behind:
        words.append(f"{status.behind} records behind")
    if status.trouble:
        words.append(status.trouble)
    return ", ".join(words)
