"""Restoring on several servers, all or none."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratagem
from stratagem import ParameterServerStrategy, Variable
from stratagem._parameter_server.checkpoints.restoring import Restoration
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.checkpoints import CheckpointSelection
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.checkpoints.training import Training, sharding
from tests.client.clusters import Cluster, running
from tests.conftest import TOKEN
from tests.nests import same_bytes


def test_one_server_that_cannot_read_keeps_all_as_they_are(tmp_path: Path) -> None:
    with running(2) as cluster, sharding(cluster, 2) as strategy:
        training = Training(strategy)
        training.train(1)
        strategy.save(tmp_path)
        training.train(1)
        before = training.optimizer.state_dict()
        part = tmp_path / "checkpoint-1" / "part-1.safetensors"
        whole = part.read_bytes()
        part.write_bytes(whole[:-1] + b"\xff")
        with pytest.raises(stratagem.DataLossError, match=r"part-1"):
            strategy.restore(tmp_path)
        assert same_bytes(training.optimizer.state_dict(), before)
        part.write_bytes(whole)
        strategy.restore(tmp_path)
        assert training.optimizer.state_dict()["state"][0]["step"] == 1


def servers_of(strategy: ParameterServerStrategy) -> ServerGroup:
    assert isinstance(strategy.extended, ParameterServerExtended)
    return strategy.extended._store.servers


def test_a_server_that_goes_away_in_between_is_said(tmp_path: Path) -> None:
    settings = ServerSettings(task=1, token=TOKEN)
    with ParameterServer(ServerSettings(token=TOKEN)) as first:
        second = ParameterServer(settings)
        second.start()
        cluster = Cluster([first.address, second.address], 1)
        with cluster.strategy(connect_seconds=0.5) as strategy:
            with strategy.scope():
                mine = [Variable(0.0, name=name) for name in "ab"]
            strategy.save(tmp_path)
            names = {0: CheckpointSelection(["a"]), 1: CheckpointSelection(["b"])}
            restoration = Restoration(servers_of(strategy), str(tmp_path), names)
            restoration.stage(60)
            mine[0].assign(5.0)
            second.stop(0)
            with pytest.raises(
                stratagem.AbortedError, match=r"not all have: .*task:1.*Restore again"
            ):
                restoration.replace()
            assert float(mine[0].numpy()) == 0.0
            mine[0].assign(5.0)
            with pytest.raises(stratagem.UnavailableError):
                restoration.stage(60)
            assert float(mine[0].numpy()) == 5.0


def test_what_is_staged_is_for_one_restoration(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            mine = Variable(0.0, name="a")
        strategy.save(tmp_path)
        mine.assign(5.0)
        servers, names = servers_of(strategy), {0: CheckpointSelection(["a"])}
        first, second = (Restoration(servers, str(tmp_path), names) for _ in "12")
        first.stage(60)
        second.stage(60)
        with pytest.raises(stratagem.AbortedError, match="has not read"):
            first.replace()
        assert float(mine.numpy()) == 5.0
