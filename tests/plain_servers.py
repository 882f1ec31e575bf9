"""Whether tests hold without the servers' fast paths: `pytest --plain-servers`.

A test or a file that is marked `plain_servers_too` is run in either way each time; one that is
marked `fast_servers` shows what a fast path spares, and is left out with plain servers. Servers in
processes of their own keep their fast paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.fast.plans import ReadPlanCache, StepPlans
from stratagem_psserver.variables.reads import ReadPlan

_WAYS = ("fast", "plain")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--plain-servers",
        action="store_true",
        help="run tests with servers that work out every update and read anew",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run marked tests in either way."""
    if metafunc.definition.get_closest_marker("plain_servers_too"):
        pushes = metafunc.definition.get_closest_marker("plain_pushes_too")
        marks = [pytest.mark.full("plain pushes to fast servers stand for both")] if pushes else []
        ways = ["fast", pytest.param("plain", marks=marks)]
        metafunc.parametrize("way_to_serve", ways, indirect=True)


@pytest.fixture(autouse=True)
def way_to_serve(request: pytest.FixtureRequest) -> Iterator[None]:
    """The way in which servers of this process carry out what repeats."""
    given = _WAYS[request.config.getoption("--plain-servers")]
    if getattr(request, "param", given) == "fast":
        yield
        return
    if request.node.get_closest_marker("fast_servers"):
        pytest.skip("it shows what a fast path of servers spares")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepPlans, "recognise", lambda *_: None)
        patch.setattr(ReadPlanCache, "plan", _planned_anew)
        yield


def _planned_anew(
    cache: ReadPlanCache,
    selections: Sequence[pb.Selection],
    joint_rows: Sequence[pb.JointRows] = (),
) -> ReadPlan:
    return ReadPlan.for_selections(cache._store, selections).with_rows(cache._store, joint_rows)
