"""Where ids of sessions are found, and what makes them usable: nowhere but with their owners."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import stratagem
from stratagem import ParameterServerStrategy
from stratagem._ps_client import session
from stratagem_proto.proofs import credential_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.asking import begin_status
from stratagem_rpc.channel import open_channel
from tests.client.clusters import Cluster
from tests.conftest import TOKEN

pytestmark = pytest.mark.unlogged


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The ids of all sessions that are opened."""
    ids: list[bytes] = []

    def token_bytes(count: int) -> bytes:
        ids.append(secrets.token_bytes(count))
        return ids[-1]

    monkeypatch.setattr(session, "secrets", SimpleNamespace(token_bytes=token_bytes))
    return ids


def trained(strategy: ParameterServerStrategy, checkpoints: Path) -> None:
    with strategy.scope():
        model = nn.Linear(3, 1)
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    strategy.save(checkpoints)


def test_no_file_and_no_answer_has_what_opens_a_session(
    tmp_path: Path,
    drawn: list[bytes],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level("DEBUG")
    state, checkpoints = tmp_path / "state", tmp_path / "checkpoints"
    state.mkdir()
    settings = ServerSettings(token=TOKEN, durability="log", durability_folder=str(state))
    with ParameterServer(settings) as server, ExitStack() as stack:
        trained(stack.enter_context(Cluster([server.address], 1).strategy()), checkpoints)
        channel = stack.enter_context(open_channel(server.address))
        status = begin_status(channel, TOKEN, 30.0, with_variables=True).result()
    assert drawn
    assert status.sessions[0].digest
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"sessions" in content for content in files)
    written = (caplog.text + "".join(capfd.readouterr())).encode()
    places = [*files, status.SerializeToString(), written]
    for identifier in drawn:
        for secret in (identifier, credential_of(identifier, TOKEN), TOKEN.encode()):
            assert not any(secret in place or secret.hex().encode() in place for place in places)
