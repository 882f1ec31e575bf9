"""Names and numbers of devices."""

from __future__ import annotations

import pytest
import torch

import stratagem
from stratagem._core import device_names

LOCAL = "/job:localhost/replica:0/task:0/device:"


def test_every_cpu_is_the_one_that_torch_has() -> None:
    cpu = device_names.torch_device("/job:ps/task:1/device:CPU:3")
    assert cpu == torch.device("cpu")
    assert device_names.torch_device("GPU:1") == torch.device("cuda", 1)


def test_new_tensors_go_to_the_current_device() -> None:
    with torch.device("meta"), stratagem.device("CPU:0"):
        assert torch.ones(1).device == torch.device("cpu")


def test_new_tensors_go_there_whatever_the_default_is() -> None:
    torch.set_default_device("meta")
    try:
        with stratagem.device("CPU:0"):
            assert torch.ones(1).device == torch.device("cpu")
        assert torch.ones(1).device == torch.device("meta")
    finally:
        torch.set_default_device(None)


def test_the_cpu_can_be_divided() -> None:
    assert stratagem.config.list_logical_devices("CPU") == (LOCAL + "CPU:0",)
    stratagem.config.set_logical_cpus(3)
    try:
        names = stratagem.config.list_logical_devices("CPU")
        assert names == tuple(f"{LOCAL}CPU:{index}" for index in range(3))
    finally:
        stratagem.config.set_logical_cpus(1)
    with pytest.raises(stratagem.InvalidArgumentError, match="at least 1"):
        stratagem.config.set_logical_cpus(0)
