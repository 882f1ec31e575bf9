"""Device names, and the scope that says which device is current."""

from __future__ import annotations

import pytest
import torch

import stratagem
from stratagem import _devices

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
        ("cuda:1", LOCAL + "GPU:1"),
        (torch.device("cuda", 1), LOCAL + "GPU:1"),
        (torch.device("cuda"), LOCAL + "GPU:0"),
        (torch.device("cpu"), LOCAL + "CPU:0"),
        ("/job:ps/task:1", "/job:ps/replica:0/task:1/device:CPU:0"),
    ],
)
def test_names_are_completed(device: str | torch.device, full: str) -> None:
    assert _devices.canonicalize(device) == full
    assert _devices.canonicalize(full) == full


@pytest.mark.spec("DEV-1")
def test_a_default_fills_the_gaps_first() -> None:
    """Parts from `default` win over these."""
    worker = "/job:worker/task:2/device:GPU:0"
    expected = "/job:worker/replica:0/task:2/device:CPU:1"
    assert _devices.canonicalize("CPU:1", worker) == expected
    assert _devices.canonicalize("/job:ps", worker).startswith(
        "/job:ps/replica:0/task:2"
    )


@pytest.mark.spec("DEV-2")
@pytest.mark.parametrize("name", ["/device:cpu:0", "CPU:x", "/task:0/job:a", "TPU"])
def test_what_names_no_device_is_refused(name: str) -> None:
    with pytest.raises(stratagem.InvalidArgumentError, match="is not a device name"):
        _devices.canonicalize(name)
    with pytest.raises(stratagem.InvalidTypeError):
        _devices.canonicalize(0)


@pytest.mark.spec("DEV-3", "DEV-4")
def test_scopes_nest_and_complete_each_other() -> None:
    assert _devices.current() == ""
    with stratagem.device("/job:worker/task:1"):
        with stratagem.device("CPU:2"):
            assert _devices.current() == ("/job:worker/replica:0/task:1/device:CPU:2")
            assert _devices.resolve("CPU:0").startswith("/job:worker/replica:0/task:1")
        assert _devices.current().endswith("/task:1/device:CPU:0")
    assert _devices.current() == ""
