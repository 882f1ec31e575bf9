"""Whether tests hold without the client's fast ways to push: `pytest --plain-pushes`.

A test or a file that is marked `plain_pushes_too` is run in either way each time; one that is
marked `fast_pushes` shows what a fast way spares, and is left out with a plain one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratagem._parameter_server.hosting import store
from stratagem._parameter_server.hosting.gradients import Route
from stratagem._parameter_server.hosting.push import CopyGuard, PullMode
from stratagem._parameter_server.hosting.pusher import Pusher
from stratagem._parameter_server.hosting.steps import StepTracker
from stratagem._ps_client.group import ServerGroup

_WAYS = ("fast", "plain")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--plain-pushes",
        action="store_true",
        help="run tests with pushes that bring no more than what they step",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run marked tests in either way."""
    if metafunc.definition.get_closest_marker("plain_pushes_too"):
        metafunc.parametrize("way_to_push", _WAYS, indirect=True)


@pytest.fixture(autouse=True)
def way_to_push(request: pytest.FixtureRequest) -> Iterator[None]:
    """The way in which strategies of this process push."""
    given = _WAYS[request.config.getoption("--plain-pushes")]
    if getattr(request, "param", given) == "fast":
        yield
        return
    if request.node.get_closest_marker("fast_pushes"):
        pytest.skip("it shows what a fast way to push spares")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "Pusher", _plain_pusher)
        # Gradients are then put together anew for each server and step.
        patch.setattr(Route, "updates", lambda *_: None)
        yield


def _plain_pusher(
    servers: ServerGroup, step_tracker: StepTracker, guard: CopyGuard, mode: PullMode
) -> Pusher:
    # Whoever chooses pushes in flight gets other values: this is more than a way to be fast.
    in_flight = mode is PullMode.IN_FLIGHT
    return Pusher(servers, step_tracker, guard, mode if in_flight else PullMode.NEVER)
