"""Dense weights whose bytes change little: versions have deltas of them, wherever they go."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import stratagem_reader.cluster_source
from stratagem import DistributedOptimizer, ParameterServerStrategy, Reader
from stratagem_proto.errors import FailedPreconditionError
from stratagem_psserver.server import ParameterServer
from stratagem_reader.cluster_source import ClusterSource
from stratagem_reader.server import ReaderServer, ReaderServerSettings
from stratagem_reader.sink import StoreSink
from stratagem_storage.checkpoint import deltas
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.conftest import TOKEN
from tests.versions.follower import Follower, contents_of
from tests.versions.training import cluster, followers, require_equal

_SECONDS = 60.0
WIDTH = 192


class Dense(nn.Module):
    """Weights of two dtypes, an idle one, small ones, and a large buffer of the chief's."""

    seen: torch.Tensor
    flags: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.large = nn.Linear(WIDTH, WIDTH)
        self.idle = nn.Linear(WIDTH, WIDTH)
        self.offset = nn.Parameter(torch.randn(1 << 15))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("seen", torch.zeros(1 << 14, dtype=torch.int64))
        self.register_buffer("flags", torch.zeros(1 << 17, dtype=torch.bool))
        with torch.no_grad():
            self.offset[-3:] = torch.tensor([torch.nan, -0.0, torch.inf])

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.large(self.small(features.bfloat16()).float()) * self.scale
        return made + self.offset[:WIDTH]


class Training:
    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self.strategy, self._random = strategy, torch.Generator().manual_seed(0)
        with strategy.scope():
            self.model = Dense()
        trained = [
            parameter
            for name, parameter in self.model.named_parameters()
            if not name.startswith("idle")
        ]
        self.optimizer = DistributedOptimizer(torch.optim.Adam(trained, lr=1e-6))

    def step(self) -> None:
        features = torch.randn(4, WIDTH, generator=self._random)

        def replica_step() -> None:
            self.optimizer.zero_grad()
            self.model(features).square().mean().backward()
            self.optimizer.step()

        self.strategy.run(replica_step)
        self.model.seen[:3] += 1
        self.model.flags[7] ^= True


def test_readers_have_the_same_bits_by_deltas() -> None:
    with cluster() as (servers, found), found.strategy() as strategy:
        training, following = Training(strategy), followers(servers)
        whole = 0
        for step in range(6):
            training.step()
            version = strategy.publish()
            if step % 2 == 0:
                for one in following:
                    come_to(one, version)
                require_equal(servers, following)
                whole = whole or sum(one.nbytes for one in following)
        assert all(one.increments == 4 for one in following)
        assert {"small.weight", "large.weight", "offset", "seen", "flags"} == {
            name for one in following for name in one.deltas
        }
        assert sum(one.nbytes for one in following) - whole < 4 * 0.3 * whole


def test_a_replica_by_deltas_finds_out_that_its_values_are_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster() as (servers, found), found.strategy() as strategy:
        training = Training(strategy)
        strategy.publish()
        with Reader([one.address for one in servers], token=TOKEN, timeout=_SECONDS) as reader:
            for number in range(4):
                training.step()
                if number == 2:
                    reader.replica.value("small.weight")[5, 5] = 7.0
                reader.wait_for(strategy.publish(), _SECONDS)
                assert ("of another base" in caplog.text) == (number >= 2)
                assert_equal(servers, reader)


def assert_equal(servers: list[ParameterServer], reader: Reader) -> None:
    """The values are those of the servers, to the bit."""
    for server in servers:
        for variable in server._state.store.variables():
            if not variable.spec.slot_of:
                mine, theirs = reader.value(variable.name), variable.value
                assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
                assert torch.equal(bits(mine), bits(theirs))


def come_to(following: Follower, version: int) -> None:
    """Versions are listed one after the other, once their increments are made."""
    while following.version < version:
        following.follow(_SECONDS)


def require_equal_to_all(servers: list[ParameterServer], following: Follower) -> None:
    hosted = {name: value for one in servers for name, value in contents_of(one).items()}
    assert hosted == {name: following.contents[name] for name in hosted}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def test_a_folder_and_a_reader_server_pass_deltas_on(tmp_path: Path) -> None:
    """Also where versions were missed, and where a whole one ends what a newcomer reads."""
    with cluster() as (servers, found), found.strategy() as strategy:
        training = Training(strategy)
        addresses = [one.address for one in servers]
        strategy.publish()
        sink = StoreSink(ClusterSource(addresses, TOKEN), tmp_path, keep=1, whole_every=3)
        served = ReaderServer(ReaderServerSettings(), ClusterSource(addresses, TOKEN))
        with served as server, Reader(f"serve://{server.address}") as behind:
            sink.write_next(_SECONDS)
            third = Follower(server.address, token="")
            with Reader(tmp_path) as reader:
                bases = []
                for number in range(6):
                    for _ in range(1 + number % 2):
                        training.step()
                        version = strategy.publish()
                    while not any(one.number == version for one in sink.write_next(_SECONDS)):
                        pass
                    reader.wait_for(version, _SECONDS)
                    behind.wait_for(version, _SECONDS)
                    come_to(third, version)
                    require_equal_to_all(servers, third)
                    assert_equal(servers, reader)
                    assert_equal(servers, behind)
                    checkpoint = open_checkpoint(tmp_path)
                    bases.append(len(checkpoint.index.bases))
                    has_delta = [
                        name for name, one in checkpoint.index.tensors.items() if one.delta
                    ]
                    assert ("small.weight" in has_delta) == bool(bases[-1])
                    checkpoint.verify()
                    with Reader(tmp_path) as newcomer:
                        assert_equal(servers, newcomer)
                assert max(bases) == 3 and bases.count(0) >= 1
            assert {"small.weight", "large.weight"} <= third.deltas and third.increments


def test_a_reader_without_the_package_takes_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.WARNING)
    with cluster() as (servers, found), found.strategy() as strategy:
        training = Training(strategy)
        addresses = [one.address for one in servers]
        strategy.publish()
        sink = StoreSink(ClusterSource(addresses, TOKEN), tmp_path)
        sink.write_next(_SECONDS)
        training.step()
        strategy.publish()
        sink.write_next(_SECONDS)
        monkeypatch.setattr(stratagem_reader.cluster_source, "HAS_DELTAS", False)
        monkeypatch.setattr(deltas, "HAS_DELTAS", False)
        with Reader(addresses, token=TOKEN, timeout=_SECONDS) as reader:
            for _ in range(2):
                training.step()
                reader.wait_for(strategy.publish(), _SECONDS)
                assert_equal(servers, reader)
        with pytest.raises(FailedPreconditionError, match=r"pip install 'stratagem\[deltas\]'"):
            Reader(tmp_path)
