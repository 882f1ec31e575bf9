"""Whether logs of servers repeat whatever tests do: `pytest --logged-servers`.

Every parameter server of this process then keeps a log, but for those that keep images, and for
those with an arbiter: replicas, and tasks that move. When it ends, another one is made of the log
alone, and has to be in the same state. Tests that are marked `unlogged` are left out: they change
what a server is past its requests. So are those that make no server in this process.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from stratagem_psserver.checkpoints import facts_of
from stratagem_psserver.environment import Environment
from stratagem_psserver.persistence.persistence import Persistence
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.state import ServerState


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--logged-servers",
        action="store_true",
        help="run tests with servers that keep a log, and repeat each log afterwards",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests whose server would have no log."""
    if config.getoption("--logged-servers"):
        without = [item for item in items if not _may_serve(item)]
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if _may_serve(item)]


def _may_serve(item: Any) -> bool:
    return "server" in item.fixturenames or _reaches_servers(item.module.__name__)


@cache
def _reaches_servers(name: str) -> bool:
    """Whether a module has what makes servers, or has what is of a module of tests that does."""
    if name == ParameterServer.__module__ or name.startswith("stratagem."):
        return True
    if not name.startswith("tests."):
        return False
    return any(map(_reaches_servers, _modules_of(sys.modules[name]) - {name}))


def _modules_of(module: ModuleType) -> set[str]:
    """The names of the modules that what a module has is of."""
    values = vars(module).values()
    return {
        value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        for value in values
    }


@pytest.fixture(autouse=True)
def way_to_end(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[None]:
    """What becomes of a server's changes when it ends."""
    if not request.config.getoption("--logged-servers"):
        yield
        return
    if request.node.get_closest_marker("unlogged"):
        pytest.skip("it changes a server past its requests")
    with pytest.MonkeyPatch.context() as patch:
        _log_all(patch, tmp_path_factory.mktemp("logs"))
        yield


def _log_all(patch: pytest.MonkeyPatch, root: Path) -> None:
    make, end = ParameterServer._handlers, ParameterServer._end
    folders: list[Path] = []

    def logged(server: ParameterServer) -> Any:
        if server.settings.durability == "none" and not server.settings.arbiter:
            folders.append(root / str(len(folders)))
            folders[-1].mkdir()
            server.settings = replace(
                server.settings, durability="log", durability_folder=str(folders[-1])
            )
        return make(server)

    async def checked(server: ParameterServer) -> None:
        if server.settings.arbiter:
            pass  # a backup, or the server that has the task next, is that other server
        elif log := server._state.changes.log:
            await log.on_disk(log.position)
            await assert_log_repeats(server._state, root)
        else:
            assert server.settings.durability == "snapshot"
        await end(server)

    patch.setattr(ParameterServer, "_handlers", logged)
    patch.setattr(ParameterServer, "_end", checked)


async def assert_log_repeats(state: ServerState, root: Path) -> None:
    """Check that the log of a server leads to the same state."""
    copy = root / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(state.settings.durability_folder, copy)
    settings = replace(state.settings, durability_folder=str(copy))
    twin = ServerState(settings, Environment())
    persistence = Persistence(twin)
    try:
        await persistence.recover()
        again, before = described(twin), described(state)
        assert again.keys() == before.keys()
        # One by one, so that a difference is seen among the many.
        for name, value in before.items():
            assert (name, again[name]) == (name, value)
    finally:
        persistence.release()
        twin.compute.close()


def described(state: ServerState) -> dict[str, Any]:
    """All that a server knows, for comparison to the bit."""
    facts = facts_of(state)
    # What a client has acknowledged by requests that were not applied is not in the log.
    facts["sessions"] = {one["id"]: (one["last"], one["task"]) for one in facts["sessions"]}
    return {
        **json.loads(json.dumps(facts)),
        "open": {session.id for session in state.ledger.opened()},
        "gate": state.gate.facts(),
        "succession": state.succession.facts(),
        "contributions": None if state.rounds.awaits_norms() else state.rounds.facts(),
        "kept": sorted(state.kept.records()),
        "first": state.store.first_version,
        "values": {one.name: (one.version, _bytes(one)) for one in state.store.variables()},
    }


def _bytes(variable: Any) -> Any:
    if variable.arena is None:
        return variable.value.reshape(-1).view(torch.uint8).numpy().tobytes()
    table = variable.arena.table
    keys = variable.keys().long()
    order = keys.argsort()
    return keys[order].tolist(), variable.rows(keys[order]).tolist(), len(table.arenas)
