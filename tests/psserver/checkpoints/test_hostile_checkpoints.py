"""Servers that are asked to restore what somebody else has put into a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError
from stratagem_psserver.checkpoints import facts_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from tests.full import a_few
from tests.hostile_checkpoints import (
    ALTERATIONS,
    DAMAGES,
    SPECIAL_FILES,
    Content,
    altered,
    lying_size,
    saved,
)
from tests.psserver.checkpoints.asking import stage
from tests.psserver.wire import RawClient

ATTACKS: dict[str, Callable[[Path], object]] = {
    **{name: partial(altered, change=change) for name, (change, _) in ALTERATIONS.items()},
    **SPECIAL_FILES,
    **DAMAGES,
}
SIZED = pytest.param(
    lying_size,
    id="a file of 2 TiB",
    marks=pytest.mark.full("tests/storage/test_hostile_checkpoints.py reads such a file"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[ParameterServer]:
    with ParameterServer(ServerSettings()) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, "") as client:
        client.open()
        client.create(w=torch.full((2,), 5.0), v=torch.full((2,), 6.0))
        yield client


@pytest.mark.parametrize("attack", [*ATTACKS.values(), SIZED], ids=[*ATTACKS, None])
def test_a_server_refuses_it_and_has_what_it_had(
    attack: Callable[[Path], object], client: RawClient, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "run")
    stage(client, tmp_path / "run")
    before = client.everything()
    attack(folder)
    with pytest.raises((DataLossError, InvalidArgumentError)):
        stage(client, tmp_path / "run")
    assert client.everything() == before


def test_what_would_exceed_the_limit_of_memory_is_not_read(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    facts = facts_of(ServerState(ServerSettings()))
    altered(folder, lambda content: content.update(servers={"part-0.safetensors": facts}))
    (folder / "part-0.safetensors").unlink()
    settings = ServerSettings(restore=str(folder), variable_bytes=100)
    with pytest.raises(ResourceExhaustedError, match="100 are left"), ParameterServer(settings):
        pass


FACTS: dict[str, object] = {
    "no closures": {"closures": 7},
    "closures without a space": {"closures": [{}]},
    "a space that is no number": {
        "closures": [{"space": "xyz", "through": 0, "unended": [], "recorded": []}]
    },
    "a reply that is none": {
        "closures": [
            {"space": "00", "through": 0, "unended": [], "recorded": [[1, [["", "00", "////"]]]]}
        ]
    },
    "data that are none": {"data": []},
    "a ledger that is none": {"data": {"d": 3}},
}


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
def test_facts_that_no_server_writes_are_refused(
    facts: object, client: RawClient, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "run")
    before = client.everything()

    def change(content: Content) -> None:
        content["servers"] = {"part-0.safetensors": facts}

    altered(folder, change)
    with pytest.raises(DataLossError, match="is not what any release of stratagem has written"):
        stage(client, folder)
    assert client.everything() == before
    settings = ServerSettings(restore=str(folder))
    with pytest.raises(DataLossError, match="is not what any release"), ParameterServer(settings):
        pass


@a_few(
    "attack",
    [*ATTACKS.values(), SIZED],
    "a server reads the folder as where it is asked to, which is tried above",
    6,
    ids=[*ATTACKS, None],
)
def test_a_server_does_not_start_from_it(attack: Callable[[Path], object], tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    facts = facts_of(ServerState(ServerSettings()))
    altered(folder, lambda content: content.update(servers={"part-0.safetensors": facts}))
    settings = ServerSettings(restore=str(tmp_path / "run"))
    with ParameterServer(settings) as server, RawClient(server.address, "") as client:
        client.open()
        assert {"v", "w", "users/part_1"} <= client.listing().keys()
    attack(folder)
    with pytest.raises(DataLossError), ParameterServer(settings):
        pass
