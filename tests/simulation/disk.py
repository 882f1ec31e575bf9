"""The disk of simulated servers: a real folder, where waiting for the disk takes no time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from stratagem_psserver.persistence import folder
from tests.simulation.world import World


def _take_no_time(file: int) -> None:
    """Do nothing: the machine does not end in a simulation, only its processes do."""


@contextmanager
def disk(world: World) -> Iterator[Path]:
    """Give servers a folder for their logs, for as long as the context lasts."""

    def sync(file: int) -> None:
        if world.strikes("failing disk", world.weather.failing_disk):
            raise OSError(EIO, "the simulated disk fails")

    with (
        TemporaryDirectory(prefix="simulation") as root,
        patch.object(os, "fsync", _take_no_time),
        patch.object(os, "fdatasync", sync),
        patch.object(folder, "_VOLATILE", frozenset()),
    ):
        yield Path(root)
