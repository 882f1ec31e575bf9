"""The kinds of fault: who is hurt, and how."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from itertools import product
from typing import TypeAlias

from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.hosts.host import Direction, Hosts
from benchmarks.chaos.roles import Role, Victim
from benchmarks.chaos.strikes import Kind, Repair, Strike
from benchmarks.chaos.victims import Coordinator, Worker

_LEAST_SECONDS, _MOST_SECONDS = 1.0, 20.0

Way: TypeAlias = Callable[[Victim, random.Random], Repair]


class Hurting:
    """Hurts whoever has a role.

    Args:
        role: The role.
        participle: What becomes of the victim, for people.
        way: How it is hurt.
    """

    def __init__(self, role: Role, participle: str, way: Way) -> None:
        self.name, self.tasks = f"{role.name} {participle}", role.tasks
        self._role, self._way = role, way

    def strike(self, task: str, chance: random.Random) -> Strike | None:
        """Hurt whoever has the role in a task."""
        victim = self._role.of(task, chance)
        if victim is None:
            return None
        return Strike(victim.name, self._way(victim, chance))


def kill(victim: Victim, chance: random.Random) -> Repair:
    """End a process by SIGKILL; it is started again at once."""
    victim.kill()
    return lambda is_over: victim.revive()


def drain(victim: Victim, chance: random.Random) -> Repair:
    """End a process by SIGTERM: what it has goes to others; it is started again afterwards."""
    victim.send(signal.SIGTERM)

    def repair(is_over: threading.Event) -> None:
        victim.await_end()
        victim.revive()

    return repair


def suspend(victim: Victim, chance: random.Random) -> Repair:
    """Suspend a process for a while."""
    seconds = _some_seconds(chance)
    victim.send(signal.SIGSTOP)

    def repair(is_over: threading.Event) -> None:
        is_over.wait(seconds)
        victim.send(signal.SIGCONT)

    return repair


def cutting(hosts: Hosts) -> Way:
    """Return what cuts a process off for a while, in one direction or in both."""

    def cut(victim: Victim, chance: random.Random) -> Repair:
        seconds, direction = _some_seconds(chance), chance.choice([*Direction])
        hosts.cut(victim.host, direction)

        def repair(is_over: threading.Event) -> None:
            is_over.wait(seconds)
            hosts.heal(victim.host)

        return repair

    return cut


def _some_seconds(chance: random.Random) -> float:
    return chance.uniform(_LEAST_SECONDS, _MOST_SECONDS)


def kinds_of(cluster: Cluster, steps: Callable[[], int]) -> list[Kind]:
    """Return all kinds of fault that a cluster can have.

    Args:
        cluster: The cluster, which runs.
        steps: Returns how many steps were taken so far.
    """
    roles = [*cluster.servers.roles, Worker(cluster), Coordinator(cluster, steps)]
    ways = (("killed", kill), ("suspended", suspend))
    kinds: list[Kind] = [*cluster.servers.kinds]
    kinds += [Hurting(role, *way) for role, way in product(roles, ways)]
    # The coordinator has nothing that others could take over while it ends.
    kinds += [Hurting(role, "drained", drain) for role in roles[:-1]]
    called = roles if cluster.hosts.can_cut("chief-0") else roles[:-1]
    kinds += [Hurting(role, "cut off", cutting(cluster.hosts)) for role in called]
    return kinds
