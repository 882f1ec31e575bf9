"""Device names, and the scope that says which device is current."""

from __future__ import annotations

import pytest
import torch

import stratagem
from stratagem._core import device_names

LOCAL = "/job:localhost/replica:0/task:0/device:"


@pytest.mark.spec("DEV-1", "DEV-2")
@pytest.mark.parametrize(
    ("device", "full"),
    [
        ("", LOCAL + "CPU:0"),
        ("/cpu:0", LOCAL + "CPU:0"),
        ("cpu", LOCAL + "CPU:0"),
        ("CPU:3", LOCAL + "CPU:3"),
        ("/device:GPU:1", LOCAL + "GPU:1"),
        ("/device:cpu:1", LOCAL + "CPU:1"),
        ("device:gpu:1", LOCAL + "GPU:1"),
        ("/job:ps/task:1/cpu", "/job:ps/replica:0/task:1/device:CPU:0"),
        ("cuda:1", LOCAL + "GPU:1"),
        (torch.device("cuda", 1), LOCAL + "GPU:1"),
        (torch.device("cuda"), LOCAL + "GPU:0"),
        (torch.device("cpu"), LOCAL + "CPU:0"),
        ("/job:ps/task:1", "/job:ps/replica:0/task:1/device:CPU:0"),
    ],
)
def test_names_are_completed(device: str | torch.device, full: str) -> None:
    assert device_names.canonicalize(device) == full
    assert device_names.canonicalize(full) == full


@pytest.mark.spec("DEV-2")
@pytest.mark.parametrize("name", ["/device:Cpu:0", "CPU:x", "/task:0/job:a", "TPU"])
def test_what_names_no_device_is_refused(name: str) -> None:
    with pytest.raises(stratagem.InvalidArgumentError, match="is not a device name"):
        device_names.canonicalize(name)
    with pytest.raises(stratagem.InvalidTypeError):
        device_names.canonicalize(0)
