"""One run: a seed decides the program, the weather and everything that happens."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import NamedTuple

from stratagem_proto.errors import AbortedError, StratagemError
from tests.simulation.cluster import Cluster
from tests.simulation.disk import Disk, simulated_disk
from tests.simulation.programs.adding import Adding
from tests.simulation.programs.coordinating import Coordinating
from tests.simulation.programs.losing import Losing
from tests.simulation.programs.observing import Observing
from tests.simulation.programs.optimizing import Optimizing
from tests.simulation.programs.program import Program
from tests.simulation.programs.publishing import Publishing
from tests.simulation.programs.restarting import Restarting
from tests.simulation.programs.sharing import Sharing
from tests.simulation.programs.training import Training
from tests.simulation.replicas.journal import replicas_watched
from tests.simulation.replicas.pair import MOVING_STORMS, REPLICA_STORMS
from tests.simulation.virtual_loop import Stuck
from tests.simulation.world import (
    CALM_AT,
    OPEN_AIR,
    RESTART,
    Happening,
    Shelter,
    Weather,
    World,
    weather_of,
)

PROGRAMS: Sequence[type[Program]] = (
    Adding,
    Training,
    Optimizing,
    Coordinating,
    Restarting,
    Observing,
)

# After the last fault, everybody has this much time to come to an end.
_LONGEST_SECONDS = CALM_AT + 600.0

# The part of the runs of `Restarting` that are of `Losing` instead. Which ones is decided apart, so
# that other seeds take the course that they took before.
_LOSING = 0.4

# The part of the runs of `Observing` that are of `Publishing` instead, which is decided likewise.
# One of those that stay comes upon a planted fault that few others find.
_OBSERVING, _PUBLISHING = 0.05, 0.5

# The part of the runs of `Optimizing` that are of `Sharing` instead, which is decided likewise.
# Outside of it are seeds that have found faults.
_OPTIMIZING, _SHARING = 0.3, 0.74

# The part of the runs in which servers keep logs.
_LOGGING = 0.35

# The part of the runs in which each server has a backup.
_REPLICATED = 0.25

# The part of the runs in which tasks move between servers.
_MOVING = 0.2

# Longer than any request waits whose client is gone.
_QUIET_SECONDS = 60.0


class Outcome(NamedTuple):
    """What came of a run.

    Attributes:
        seed: Its seed.
        program: The name of its program.
        violations: What must not have happened.
        faults: How often each fault has happened.
        effects: How often servers have done what only faults make them do.
        trace: All that has happened.
    """

    seed: int
    program: str
    violations: Sequence[str]
    faults: Counter[str]
    effects: Counter[str]
    trace: Sequence[Happening]


class Shape(NamedTuple):
    """What a run is like.

    Attributes:
        program: The program of its clients.
        logs: Whether servers keep logs.
        replicated: Whether each task has two replicas.
        moves: Whether each task moves between two servers.
    """

    program: Program
    logs: bool
    replicated: bool
    moves: bool

    def __str__(self) -> str:
        replicas = " on replicas" if self.replicated else " on moving tasks" if self.moves else ""
        return type(self.program).__name__ + replicas + (" with logs" if self.logs else "")


def shape_of(world: World) -> Shape:
    """Choose what a run is like."""
    program = world.chance.choice(PROGRAMS)(world)
    if isinstance(program, Restarting) and _is_other("losing", world, _LOSING):
        return Shape(Losing(world), logs=True, replicated=False, moves=False)
    if isinstance(program, Observing) and _is_other("publishing", world, _PUBLISHING, _OBSERVING):
        program = Publishing(world)
    if isinstance(program, Optimizing) and _is_other("sharing", world, _SHARING, _OPTIMIZING):
        program = Sharing(world)
    keeps = not isinstance(program, Restarting)
    logs = keeps and world.chance.random() < _LOGGING
    drawn = world.chance.random() if keeps else 1.0
    moves = _REPLICATED <= drawn < _REPLICATED + _MOVING
    return Shape(program, logs, drawn < _REPLICATED, moves)


def _is_other(program: str, world: World, likely: float, least: float = 0.0) -> bool:
    return least <= Random(f"{program} {world.seed}").random() < likely


def shape_of_seed(seed: int) -> Shape:
    """Return what the run of a seed is like, without running it."""
    world = World(seed)
    try:
        return shape_of(world)
    finally:
        world.loop.close()


def simulate(seed: int, shelter: Shelter = OPEN_AIR) -> Outcome:
    """Run the simulation of a seed; the same seed and shelter give the same trace."""
    with _uncollected():
        return _outcome(seed, shelter)


def _outcome(seed: int, shelter: Shelter) -> Outcome:
    world = World(seed, shelter)
    shape = shape_of(world)
    with ExitStack() as stack:
        if shape.replicated or shape.moves:
            stack.enter_context(replicas_watched(world, shape.logs))
        disk = stack.enter_context(simulated_disk(world)) if shape.logs else None
        _end(world, shape, disk)
    found = world.faults, world.effects
    return Outcome(seed, str(shape), world.violations, *found, world.trace)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let no garbage collection decide when something of a run comes to its end, nor slow it.

    What the run has made is freed at the end; errors that nobody has asked for are found then. With
    the run still alive, a collection takes 10 ms, and 3 ms without it.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        gc.enable()


def _end(world: World, shape: Shape, disk: Disk | None) -> None:
    program = shape.program
    if program.storms and shape.replicated:
        program.storms = (*program.storms, *REPLICA_STORMS)
    elif program.storms and shape.moves:
        program.storms = (*program.storms, *MOVING_STORMS)
    elif program.storms and shape.logs:
        program.storms = (*program.storms, RESTART)
    try:
        running = _run(world, shape, disk)
        world.loop.run(asyncio.wait_for(running, _LONGEST_SECONDS))
    except asyncio.TimeoutError:
        world.require(False, f"the program did not end in {_LONGEST_SECONDS:g} s")
    except AbortedError as error:
        # Of a request that may be what has ended two primaries; a program may then end.
        world.require(shape.replicated or shape.moves, f"the program ends with {error!r}")
    except (Stuck, StratagemError) as error:
        world.require(False, f"the program ends with {error!r}")


async def _run(world: World, shape: Shape, disk: Disk | None) -> None:
    program = shape.program
    cluster = Cluster(world, program.num_servers, disk, shape.replicated, shape.moves)
    await program.prepare(cluster)
    world.weather = weather_of(world.chance, program.storms)
    world.note("weather", str(world.weather))
    storm = world.loop.create_task(cluster.storm())
    await program.run(cluster)
    storm.cancel()
    world.weather = Weather()
    world.note("weather", "calm")
    await asyncio.sleep(_QUIET_SECONDS)
    await cluster.settle()
    await program.judge(cluster)
    cluster.check_rest()
    await cluster.check_replicas()
