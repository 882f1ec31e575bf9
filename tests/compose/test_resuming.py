"""`examples/resuming.py` in containers, of which each and all are killed."""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress

import pytest

from tests.compose.project import Project
from tests.waiting import eventually

pytestmark = pytest.mark.compose

DEATHS = 12
VICTIMS = ("worker-0", "worker-1", "ps-0", "ps-1")


def started(project: Project) -> None:
    """Starts whatever does not run."""
    up = project.up("--detach")
    assert up.returncode == 0, up.stderr


def told(project: Project) -> str:
    """What the chief prints, once all has ended well."""
    assert project.exit_code("worker-0") == 0, project.logs("worker-0")
    assert project.exit_code("worker-1") == 0, project.logs("worker-1")
    lines: list[str] = re.findall(r"^error .* times$", project.logs("worker-0"), re.MULTILINE)
    return lines[-1]


def latest(project: Project) -> str:
    """The name of the latest checkpoint; "" if there is none, or nobody to ask."""
    return project.inside("ps-0", "cat", "/checkpoints/resuming/checkpoints/latest")


def strike(project: Project, death: int, chance: random.Random) -> str:
    """Kills one container or all of them, and has them started again; returns which."""
    if death % 4 == 3:
        project.compose("kill")
        started(project)
        return "all"
    victim = chance.choice(VICTIMS)
    if death % 2:
        project.crash(victim)  # for the engine to start again
        return victim
    with suppress(AssertionError):  # it has crashed just before, and does not run
        project.kill(victim)
    time.sleep(chance.uniform(0.0, 3.0))
    project.start(victim)
    return f"{victim}, by hand"


def survive(project: Project, deaths: int, seed: int) -> list[str]:
    """Kills at so many random moments of a training, and returns whom."""
    chance, killed = random.Random(seed), list[str]()
    for death in range(deaths):
        before = latest(project)
        with suppress(AssertionError):  # whoever starts may be killed, too
            eventually(lambda: latest(project) not in ("", before), chance.uniform(1.0, 20.0), 0.5)  # noqa: B023
        time.sleep(chance.uniform(0.0, 2.0))
        if project.inspect("worker-0", "{{.State.Status}} {{.State.ExitCode}}") == "exited 0":
            break
        killed.append(strike(project, death, chance))
    return killed


# A busy machine may take ten minutes for a training in which nothing happens.
@pytest.mark.timeout(3600)
def test_the_program_to_copy_ends_as_if_nothing_had_happened(resuming_project: Project) -> None:
    project = resuming_project
    started(project)
    quiet = told(project)
    print(f"\nin containers: {quiet}")
    project.down()
    began = time.monotonic()
    started(project)
    killed = survive(project, DEATHS, seed=1)
    end = told(project)
    print(f"killed in {time.monotonic() - began:.0f} s: {'; '.join(killed)}\n{end}")
    assert end == quiet
    assert len(killed) > DEATHS // 2 and "all" in killed
    # All is over, also for whoever starts it again.
    project.compose("kill")
    started(project)
    assert told(project) == quiet
