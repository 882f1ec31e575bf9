"""GPUs that are divided among replicas: their names, without any GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import stratagem
from stratagem import MirroredStrategy, NcclAllReduce, ReductionToOneDevice, config
from stratagem._core.device_names import canonicalize, torch_device
from stratagem._core.reduction import default_cross_device_ops

LOCAL = "/job:localhost/replica:0/task:0/device:GPU:"


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two GPUs, each divided in two; only their number is ever asked for."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config.set_logical_gpus(2)
    yield
    config.set_logical_gpus(1)


@pytest.mark.usefixtures("halves")
def test_the_parts_are_numbered_gpu_by_gpu() -> None:
    names = config.list_logical_devices("GPU")
    assert names == tuple(f"{LOCAL}{index}" for index in range(4))
    indices = [torch_device(name).index for name in names]
    assert indices == [0, 0, 1, 1]
    assert torch_device("GPU:3") == torch.device("cuda", 1)


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("name", ["cuda:1", torch.device("cuda", 1)])
def test_the_names_of_torch_stay_those_of_torch(name: str | torch.device) -> None:
    assert canonicalize(name) == LOCAL + "2"
    assert torch_device(canonicalize(name)) == torch.device("cuda", 1)


@pytest.mark.usefixtures("halves")
def test_each_part_has_a_replica_by_default() -> None:
    assert MirroredStrategy().num_replicas_in_sync == 4
    strategy = stratagem.CentralStorageStrategy(["GPU:0", "GPU:1"], "CPU:0")
    assert strategy.extended.worker_devices == [LOCAL + "0", LOCAL + "1"]


@pytest.mark.usefixtures("halves")
def test_nccl_is_not_chosen_for_replicas_that_share_a_gpu() -> None:
    """NCCL refuses two ranks on one device."""
    chosen = [
        type(default_cross_device_ops([f"{LOCAL}{index}" for index in indices]))
        for indices in [(0, 1), (0, 1, 2), (0, 2)]
    ]
    assert chosen == [ReductionToOneDevice, ReductionToOneDevice, NcclAllReduce]


@pytest.mark.usefixtures("halves")
def test_a_part_is_named_once_and_exists() -> None:
    with pytest.raises(ValueError, match=r"No duplicates.*set_logical_gpus\(n\)"):
        MirroredStrategy(["GPU:2", "cuda:1"])
    with pytest.raises(ValueError, match=r"no device .*GPU:4.*set_logical_gpus\(n\)"):
        MirroredStrategy(["GPU:4"])


def test_undivided_again_the_names_mean_whole_gpus() -> None:
    config.set_logical_gpus(2)
    assert torch_device("GPU:1") == torch.device("cuda", 0)
    config.set_logical_gpus(1)
    assert torch_device("GPU:1") == torch.device("cuda", 1)
    assert canonicalize("cuda:1") == LOCAL + "1"


def test_there_is_at_least_one_part() -> None:
    with pytest.raises(stratagem.InvalidArgumentError, match="at least 1 logical GPU"):
        config.set_logical_gpus(0)


def test_dividing_no_gpu_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    config.set_logical_gpus(2)
    try:
        assert config.list_logical_devices("GPU") == ()
        with pytest.raises(ValueError, match=r"no device .*GPU:0, it has .*CPU:0"):
            MirroredStrategy(["GPU:0", "GPU:1"])
    finally:
        config.set_logical_gpus(1)
