"""Signing checkpoints that were written without a key, or with another one."""

from __future__ import annotations

from dataclasses import replace

from stratagem_proto.checkpoint.entries import FileEntry, WriteOptions, write_file
from stratagem_proto.checkpoint.folder import Checkpoint, NewCheckpoint
from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.stores.places import Place
from stratagem_proto.stores.store import Folder

_ALL = 1 << 62


def sign(checkpoint: Checkpoint, root: Place, key: str) -> Place:
    """Write a signed copy of a checkpoint, which becomes the latest one; all others stay.

    A copy, since the bytes that were checked are then those that are signed, and since a crash
    leaves what there was.

    Args:
        checkpoint: The checkpoint, which somebody trusts.
        root: The folder of checkpoints that gets the copy.
        key: The key.

    Returns:
        The copy.

    Raises:
        DataLossError: The checkpoint is damaged.
        FailedPreconditionError: It is incremental.
    """
    if checkpoint.base is not None:
        raise FailedPreconditionError(
            f"{str(checkpoint.folder)!r} has only what differs from "
            f"{str(checkpoint.base.folder)!r}, so that its signature would say nothing of the "
            "rest; write a whole one by `stratagem checkpoint reshard`, and sign that"
        )
    new = NewCheckpoint(root)
    try:
        files = {name: _copied(checkpoint, name, new.folder) for name in checkpoint.index.files}
        return new.commit(replace(checkpoint.index, files=files), _ALL, key)
    except BaseException:
        new.abandon()
        raise


def _copied(checkpoint: Checkpoint, name: str, folder: Folder) -> FileEntry:
    blocks = checkpoint.file(name).checked()
    return write_file(folder, name, blocks, WriteOptions(has_digests=True))
