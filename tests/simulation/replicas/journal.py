"""What the servers of a simulation write to their log, in its trace."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from stratagem_psserver.log import log as logs
from stratagem_psserver.persistence import folder
from tests.simulation.server_run import PRESENT_RUN
from tests.simulation.thread import SimulatedThread
from tests.simulation.world import World

# What replicas did because of faults.
_COUNTED = {
    "takes over": "take-over",
    "is not the primary any more": "fencing",
    "has a backup": "catch-up",
    "hands over": "task handed over",
    "goes on without a backup": "backup left out",
}

_IN_MEMORY = Path("/dev/shm")


class Journal(logging.Handler):
    """Adds lines of the log to a trace; a line that tells of an error is a violation."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Add a line."""
        if not isinstance(record.msg, dict):
            return
        run = PRESENT_RUN.get()
        if run is not None and run.has_ended:
            return
        event = str(record.msg["event"])
        others = {name: value for name, value in record.msg.items() if name not in _OMITTED}
        who = run.name if run is not None else "log"
        self._world.note(who, " ".join([event, *(f"{name}={others[name]}" for name in others)]))
        if event in _COUNTED:
            self._world.effects[_COUNTED[event]] += 1
        if "is served by another replica" in str(others.get("why")):
            self._world.effects["answer of a former primary refused"] += 1
        what = f"{who} logs an error: {event} {record.msg.get('exc_info', '')!r}"
        self._world.require(record.levelno < logging.ERROR, what)


_OMITTED = {"event", "task", "level", "timestamp", "epoch", "exc_info"}


@contextmanager
def replicas_watched(world: World, has_disk: bool) -> Iterator[None]:
    """Note what replicas log, and let no image of theirs reach a real disk."""
    log, journal = logging.getLogger("stratagem_server"), Journal(world)
    level = log.level
    log.addHandler(journal)
    log.setLevel(logging.INFO)
    with ExitStack() as stack:
        if os.access(_IN_MEMORY, os.W_OK):
            root = stack.enter_context(tempfile.TemporaryDirectory("replicas", dir=_IN_MEMORY))
            stack.enter_context(patch.object(tempfile, "tempdir", root))
            stack.enter_context(patch.object(folder, "VOLATILE", frozenset()))
        stack.enter_context(patch.object(logs, "DiskThread", SimulatedThread))
        if not has_disk:
            stack.enter_context(patch.object(os, "fsync", lambda file: None))
        try:
            yield
        finally:
            log.removeHandler(journal)
            log.setLevel(level)
