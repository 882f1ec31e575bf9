"""Reader servers in containers answer while the demo trains, and after its servers have gone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compose.project import Project
from tests.demo import CLOSE, DEMO_RMSE, demo_error
from tests.waiting import eventually

pytestmark = pytest.mark.compose

# Asks a reader server as any program does; the token is in the container's environment.
ASK = """
import json, sys, torch, stratagem
with stratagem.Reader("serve://" + sys.argv[1], timeout=5) as reader, reader.pin() as version:
    rows = reader.lookup("item.weight", torch.arange(8))
    print(json.dumps({"version": version, "age": reader.age, "rows": rows.tolist()}))
"""


def answers(project: Project, server: str, seconds: float = 300.0) -> Iterator[dict[str, Any]]:
    """What a reader server answers to a program in its container, again and again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        told = project.inside(server, "python", "-c", ASK, f"{server}:2222")
        if told:
            yield json.loads(told)
    raise AssertionError(f"{server} does not answer as it should: {project.logs(server)}")


def test_reader_servers_answer_while_a_program_trains_and_without_its_servers(
    served_project: Project,
) -> None:
    project = served_project
    started = project.up("--detach")
    assert started.returncode == 0, started.stderr
    found = answers(project, "reader-1")
    first = next(found)
    later = next(answer for answer in found if answer["version"] > first["version"])
    assert later["rows"] != first["rows"]
    print(f"\nversions are {first['age']:.1f} and {later['age']:.1f} seconds old")

    assert project.exit_code("worker-0") == 0
    assert abs(demo_error(project.logs("worker-0")) - DEMO_RMSE) < CLOSE
    last = next(answers(project, "reader-0"))
    assert any(
        (answer["version"], answer["rows"]) == (last["version"], last["rows"])
        for answer in answers(project, "reader-1")
    )
    project.compose("stop", "ps-0", "ps-1", "reader-0")
    eventually(lambda: "cannot be followed at present" in project.logs("reader-1"), poll=0.5)
    alone = next(answers(project, "reader-1"))
    assert (alone["version"], alone["rows"]) == (last["version"], last["rows"])
