"""An image of the primary's state, from which a backup goes on."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stratagem_psserver.persistence.images import Moment, moment_of, write_image
from stratagem_psserver.persistence.retention import Placed
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
    moment, needed = await _moment_for(state, log)
    link.begin_after(moment.position)
    with tempfile.TemporaryDirectory(prefix="stratagem-image-") as name:
        await _write(state, moment, Path(name))
        await link.send_image(Path(name), moment.position)
    await link.send_needed(needed)


async def _moment_for(state: ServerState, log: ReplicatedLog) -> tuple[Moment, Sequence[Placed]]:
    """Return a moment for an image, and the records that such an image lacks.

    Contributions to steps that are not complete are in no image.
    """
    while True:
        moment = await moment_of(state)
        if moment is not None:
            # At once, before another request is over and its record is not retained any more.
            needed = log.retained.find(moment.facts["exact"]["records"])
            if needed is not None:
                return moment, needed
            state.snapshots.close(moment.snapshot)
        await asyncio.sleep(_RETRY_SECONDS)


async def _write(state: ServerState, moment: Moment, folder: Path) -> None:
    # Whoever gets it brings it to disk, if it is to be there.
    write = partial(write_image, folder, moment, state.settings.task, syncs=False)
    writing = asyncio.get_running_loop().run_in_executor(None, write)
    try:
        await asyncio.shield(writing)
    finally:
        # A thread is not cancelled with what waits for it.
        await asyncio.wait([writing])
        state.snapshots.close(moment.snapshot)
