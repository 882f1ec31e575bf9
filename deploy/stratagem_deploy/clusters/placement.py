"""Where the tasks of a cluster are, by the word of an arbiter of this host."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from stratagem_psserver.replication.arbiter import Deadline
from stratagem_psserver.replication.registers import FileRegister
from stratagem_psserver.settings import ServerSettings

# Nobody waits for the disk of this host for so long.
_READ_SECONDS = 10.0


def servers_with_tasks(arbiter: Path, tasks: int) -> Set[int]:
    """Return the numbers of the servers that serve tasks, or did when they ended.

    Args:
        arbiter: The folder of the arbiter.
        tasks: How many tasks the cluster has. A server that was added has one more, in which there
            is nothing.

    Raises:
        UnavailableError: The disk fails.
        DataLossError: A file of the arbiter is damaged.
    """
    registers = [FileRegister(str(arbiter), ServerSettings(task=task)) for task in range(tasks)]
    views = [register.read(Deadline(_READ_SECONDS)) for register in registers]
    return {view.primary.index for view in views if view is not None and view.HasField("primary")}
