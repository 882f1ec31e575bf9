"""Who can be hurt at a moment, and how each is well again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.chaos.launcher import DRAIN_SECONDS
from stratagem_deploy.clusters.servers import ServerProcess


@dataclass(frozen=True)
class Victim:
    """A process.

    Attributes:
        name: What people call it.
        host: Where it runs.
        send: Sends it a signal.
        kill: Ends it by SIGKILL.
        await_end: Waits until it has ended.
        revive: Starts it again, and waits until it is well.
    """

    name: str
    host: str
    send: Callable[[int], None]
    kill: Callable[[], None]
    await_end: Callable[[], None]
    revive: Callable[[], None]


class Role(Protocol):
    """What several processes are, one after the other.

    Attributes:
        name: What people call whoever has it.
        tasks: The tasks that have it. A task has one fault at a time.
    """

    name: str
    tasks: Sequence[str]

    def of(self, task: str, chance: random.Random) -> Victim | None:
        """Return who has it; None if nobody of the task may be hurt at present."""


def victim_of(process: ServerProcess, host: str, revive: Callable[[], None]) -> Victim:
    """Return a server or worker as a victim.

    Args:
        process: Its process.
        host: Where it runs.
        revive: Starts it again, and waits until it is well.
    """

    def send(signum: int) -> None:
        if process.process is not None:
            process.process.send(signum)

    def await_end() -> None:
        if process.process is not None and not process.process.wait(DRAIN_SECONDS):
            process.kill()

    return Victim(process.name, host, send, process.kill, await_end, revive)
