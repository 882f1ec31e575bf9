"""An image of the primary's state, from which a backup goes on."""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path

from stratagem_psserver.persistence.images import Moment, moment_of, write_image
from stratagem_psserver.replication.backup_link import BackupLink
from stratagem_psserver.replication.replicated_log import ReplicatedLog
from stratagem_psserver.state import ServerState

_RETRY_SECONDS = 0.1


async def send_image(state: ServerState, log: ReplicatedLog, link: BackupLink) -> None:
    """Send an image to a backup that gets all further records, and what the image lacks.

    Raises:
        OSError: The disk does not take the files of the image.
        UnavailableError: The backup is gone.
    """
    moment = await _moment_for(state, log)
    # At once, before another request is over and its record is not retained any more.
    needed = log.retained(moment.facts["exact"]["records"])
    link.begin_after(moment.position)
    with tempfile.TemporaryDirectory(prefix="stratagem-image-") as name:
        await _write(state, moment, Path(name))
        await link.send_image(Path(name), moment.position)
    await link.send_needed(needed)


async def _moment_for(state: ServerState, log: ReplicatedLog) -> Moment:
    """Return a moment for an image.

    A log on disk begins behind its image, so such an image must not lack contributions to steps
    that are not complete. Any other may lack those whose records are there.
    """
    while True:
        moment = await moment_of(state)
        if moment is not None:
            if _can_follow(moment, log):
                return moment
            state.snapshots.close(moment.snapshot)
        await asyncio.sleep(_RETRY_SECONDS)


def _can_follow(moment: Moment, log: ReplicatedLog) -> bool:
    """Return whether a backup could go on from a moment."""
    if log.disk is not None:
        return moment.needed > moment.position
    return log.has(moment.facts["exact"]["records"])


async def _write(state: ServerState, moment: Moment, folder: Path) -> None:
    write = partial(write_image, folder, moment, state.settings.task)
    writing = asyncio.get_running_loop().run_in_executor(None, write)
    try:
        await asyncio.shield(writing)
    finally:
        # A thread is not cancelled with what waits for it.
        await asyncio.wait([writing])
        state.snapshots.close(moment.snapshot)
