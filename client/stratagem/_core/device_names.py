"""Device names, those of this process, and the scope that says which device is current."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NoReturn

import torch
from torch._C import _get_default_device, _len_torch_function_stack

from stratagem_proto.errors import (
    ContextError,
    InvalidArgumentError,
    InvalidTypeError,
    UnimplementedError,
)


def nesting_error(what: str) -> ContextError:
    """Return the error for leaving a scope in which another one is open.

    Args:
        what: The kind of scope.

    Spec: CTX-13.
    """
    return ContextError(
        f"{what} scope nesting error: a scope that was opened inside of this one is "
        "still open where this one is left; move experimental_set_strategy out of "
        "`with`, or close the inner scope first"
    )


# Compiled, by `re` itself, only once a name is read.
_PARTS = (
    r"(?:/job:(?P<job>[a-zA-Z]\w*))?"
    r"(?:/replica:(?P<replica>\d+))?"
    r"(?:/task:(?P<task>\d+))?"
    r"(?:(?:^|/)device:(?P<kind>[A-Z][A-Z0-9_]*|cpu|gpu):(?P<index>\d+)"
    r"|/(?P<short>(?i:cpu|gpu))(?::(?P<number>\d+))?)?"
)
_SHORT = r"(?i:/?(?P<kind>cpu|gpu|cuda)(?::(?P<index>\d+))?)"

_ACCELERATOR = "GPU"


class _LogicalDevices:
    """Into how many logical devices this process divides its real ones."""

    def __init__(self) -> None:
        self.cpus = 1
        self.per_gpu = 1


_logical = _LogicalDevices()


@dataclass(frozen=True)
class DeviceName:
    """A device name in its parts; None where the name leaves one open.

    The full form is `/job:worker/replica:0/task:3/device:GPU:1`. Spec: DEV-1.
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None

    @classmethod
    def parse(cls, device: str | torch.device) -> DeviceName:
        """Read a device string of either convention, or a `torch.device`.

        Raises:
            InvalidArgumentError: The string names no device.
            InvalidTypeError: `device` is neither a string nor a `torch.device`.
        """
        if isinstance(device, torch.device):
            return cls._of_torch(device.type, device.index or 0)
        if not isinstance(device, str):
            raise InvalidTypeError(f"A device is a string or a torch.device, not {device!r}")
        short = re.fullmatch(_SHORT, device)
        if short:
            return cls._of_torch(short["kind"].lower(), int(short["index"] or 0))
        return cls._parse_full(device)

    @classmethod
    def _of_torch(cls, kind: str, index: int) -> DeviceName:
        """Name a device of torch, or a logical "gpu"."""
        if kind == "cpu":
            return cls(kind="CPU", index=index)
        if kind == "cuda":
            index *= _logical.per_gpu
        return cls(kind=_ACCELERATOR, index=index)

    @classmethod
    def _parse_full(cls, device: str) -> DeviceName:
        parts = re.fullmatch(_PARTS, device)
        if parts is None:
            raise InvalidArgumentError(
                f"{device!r} is not a device name; write for instance 'GPU:0', "
                "'cuda:0' or '/job:worker/task:0/device:CPU:0'"
            )
        kind, index = parts["kind"] or parts["short"], parts["index"] or parts["number"]
        replica, task = parts["replica"], parts["task"]
        return cls(
            job=parts["job"],
            replica=None if replica is None else int(replica),
            task=None if task is None else int(task),
            kind=None if kind is None else kind.upper(),
            index=None if kind is None else int(index or 0),
        )

    def completed_by(self, other: DeviceName) -> DeviceName:
        """Return this name with open parts taken from `other`."""
        return DeviceName(
            **{
                f.name: getattr(other, f.name)
                if getattr(self, f.name) is None
                else getattr(self, f.name)
                for f in fields(self)
            }
        )

    @property
    def torch_device(self) -> torch.device:
        """The device of torch; every logical CPU is its one CPU."""
        if self.kind == _ACCELERATOR:
            return torch.device("cuda", (self.index or 0) // _logical.per_gpu)
        return torch.device("cpu")

    def __str__(self) -> str:
        parts = [
            f"/{name}:{getattr(self, name)}"
            for name in ("job", "replica", "task")
            if getattr(self, name) is not None
        ]
        if self.kind is not None:
            parts.append(f"/device:{self.kind}:{self.index}")
        return "".join(parts)


_LOCAL_CPU = DeviceName(job="localhost", replica=0, task=0, kind="CPU", index=0)


@cache
def canonicalize(device: str | torch.device, default: str | torch.device | None = None) -> str:
    """Return the full name of `device`.

    Args:
        device: A device name, possibly partial.
        default: Name whose parts fill the gaps before `/job:localhost/
            replica:0/task:0/device:CPU:0` does.

    Raises:
        InvalidArgumentError: One of them names no device. Spec: DEV-1, DEV-2.
    """
    name = DeviceName.parse(device)
    if default is not None:
        name = name.completed_by(DeviceName.parse(default))
    return str(name.completed_by(_LOCAL_CPU))


def resolve(device: str | torch.device) -> str:
    """Return the full name of `device`, seen from the current device.

    Spec: DEV-3.
    """
    return canonicalize(device, current() or None)


def current() -> str:
    """Return the device of the innermost `device` scope, or "". Spec: DEV-4."""
    return _scopes.names[-1] if _scopes.names else ""


def depth() -> int:
    """Return how many `device` scopes are open in this thread."""
    return len(_scopes.names)


def clear() -> None:
    """Leave all `device` scopes of this thread."""
    _scopes.names.clear()


@cache
def torch_device(device: str | torch.device) -> torch.device:
    """Return the `torch.device` that carries out the work of `device`."""
    if isinstance(device, torch.device):
        return device
    return DeviceName.parse(device).torch_device


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


_scopes = _Scopes()


class device:
    """Scope in which `name` is the current device of this thread.

    Variables and reduced values go there, and torch makes new tensors on it.

    Args:
        name: A device name; parts it leaves open come from the enclosing scope.

    Raises:
        InvalidArgumentError: `name` names no device.
        ContextError: On leaving: a scope opened inside is still open. This one can be left once
            that is closed. Spec: CTX-13.
    """

    def __init__(self, name: str | torch.device) -> None:
        self._name = name
        # Depth inside, and what torch was told, of each time.
        self._entered: list[tuple[int, torch.device | None]] = []

    def __enter__(self) -> None:
        names = _scopes.names
        name = canonicalize(self._name, names[-1] if names else None)
        target = torch_device(name)
        # Entering a torch.device slows every torch call down, so only where needed.
        placement = None if _is_default(target) else target
        if placement is not None:
            placement.__enter__()
        names.append(name)
        self._entered.append((len(names), placement))

    def __exit__(self, *error: Any) -> None:
        inside, placement = self._entered[-1]
        names = _scopes.names
        if len(names) != inside:
            raise nesting_error("Device")
        self._entered.pop()
        names.pop()
        if placement is not None:
            placement.__exit__(*error)


def _is_default(target: torch.device) -> bool:
    # Where no mode is on, only the default type of tensors says otherwise; to make a tensor would
    # take 1.2 us, and it is asked for twice in a step.
    if not _len_torch_function_stack() and _get_default_device() == "cpu":
        return target.type == "cpu"
    # torch.get_default_device takes four times as long, and PyTorch 2.6 tells of
    # torch.set_default_device alone there, not of `with torch.device(...)`.
    return torch.empty(0).device == target


def set_logical_cpus(count: int) -> None:
    """Divide the CPU into `count` logical devices, `CPU:0` to `CPU:<count-1>`.

    They share torch's one CPU; several replicas can thus be tried anywhere.

    Raises:
        InvalidArgumentError: `count` is less than 1.
    """
    _require_positive(count, "CPU")
    _logical.cpus = count


def set_logical_gpus(count: int) -> None:
    """Divide each GPU into `count` logical devices, so that replicas can share it.

    With two, `GPU:0` and `GPU:1` are `cuda:0`, `GPU:2` and `GPU:3` are `cuda:1`, and so on, while
    torch's names stay torch's: "cuda:1" is the first part, `GPU:2`, of its second GPU. The parts
    share the GPU's memory and NCCL cannot connect them.

    To be called before the first strategy: the names that one already has would mean other devices.

    Raises:
        InvalidArgumentError: `count` is less than 1.
    """
    _require_positive(count, _ACCELERATOR)
    _logical.per_gpu = count
    canonicalize.cache_clear()
    torch_device.cache_clear()


def _require_positive(count: int, kind: str) -> None:
    if count < 1:
        raise InvalidArgumentError(f"There must be at least 1 logical {kind}, not {count}")


def list_logical_devices(kind: str | None = None) -> tuple[str, ...]:
    """Return the full names of this process's devices.

    Args:
        kind: "CPU" or "GPU" to list only those.
    """
    gpus = torch.cuda.device_count() * _logical.per_gpu
    counts = {"CPU": _logical.cpus, _ACCELERATOR: gpus}
    return tuple(
        canonicalize(f"{name}:{index}")
        for name, count in counts.items()
        for index in range(count)
        if kind in (None, name)
    )


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
