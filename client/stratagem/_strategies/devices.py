"""The devices that a user names for a strategy of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from stratagem._core.device_names import DeviceName, canonicalize, list_logical_devices
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError


def distinct_devices(devices: Sequence[str | torch.device]) -> tuple[str, ...]:
    """Return the full names of devices of this process.

    Raises:
        InvalidArgumentError: One is named twice; or as `require_local`.
        UnimplementedError: As `require_local`.

    Spec: MS-2 to MS-5, CS-3.
    """
    names = tuple(canonicalize(device) for device in devices)
    if len(set(names)) < len(names):
        raise InvalidArgumentError(
            f"No duplicates allowed in the devices of replicas: {', '.join(names)}; "
            "name each once; config.set_logical_cpus(n) makes several of the CPU, "
            "config.set_logical_gpus(n) of each GPU"
        )
    require_local(devices)
    return names


def require_local(devices: Sequence[str | torch.device]) -> None:
    """Check that this process has these devices.

    Raises:
        InvalidArgumentError: It has not; or some are of this process and others are not; or one is
            of a job without saying which task.
        UnimplementedError: All belong to other processes.
    """
    parts = [DeviceName.parse(device) for device in devices]
    remote = [part for part in parts if part.job not in (None, "localhost")]
    if remote:
        _refuse_remote(remote, len(remote) < len(parts))
    known = list_logical_devices()
    for name in map(canonicalize, devices):
        if name not in known:
            raise InvalidArgumentError(
                f"This process has no device {name}, it has {', '.join(known)}; "
                "config.set_logical_cpus(n) makes more of the CPU, "
                "config.set_logical_gpus(n) of each GPU"
            )


def _refuse_remote(devices: Sequence[DeviceName], mixed: bool) -> NoReturn:
    if mixed or any(device.task is None for device in devices):
        raise InvalidArgumentError(
            f"The devices of a strategy are all local, or all name a job and a task; "
            f"{devices[0]} does not fit"
        )
    raise UnimplementedError(
        f"In-graph multi-worker training on {devices[0]} is not supported in eager "
        "mode: a strategy of one process has devices of that process alone; use "
        "MultiWorkerMirroredStrategy or ParameterServerStrategy for several"
    )
