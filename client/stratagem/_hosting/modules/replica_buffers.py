"""The buffers of modules, of which each replica has its own."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Sequence, ValuesView
from copy import deepcopy
from typing import Any, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from stratagem._core.contexts import current_replica_id

Value = TypeVar("Value")


class ReplicaView(dict[str, Value]):
    """A `dict` that is read through the `__getitem__` and `get` of its subclass.

    It is one because torch checks for it. Copies of it, and so copies of the module, are plain
    dicts that know of no strategy.
    """

    def __iter__(self) -> Iterator[str]:
        # Defined so that dict(self) and {**self} do not look into the base class.
        return super().__iter__()

    def items(self) -> ItemsView[str, Value]:  # type: ignore[override] # not dict's own
        return ItemsView(self)

    def values(self) -> ValuesView[Value]:  # type: ignore[override] # not dict's own
        return ValuesView(self)

    def copy(self) -> dict[str, Value]:
        return dict(self.items())

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Value]:
        return {key: deepcopy(value, memo) for key, value in self.items()}

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return dict, (self.copy(),)


_Buffers = dict[str, "Tensor | None"]


class BufferRegistry:
    """The buffers, such as running statistics, of one strategy's modules.

    They are no variables: each replica changes its own as it likes. What lasts are those of the
    first replica, the module's own; the others start each run as copies of them, as in
    `torch.nn.parallel.DistributedDataParallel`. They belong to their modules, and go with these.

    Args:
        devices: The device of each replica of this process.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._others = tuple(devices[1:])
        self._shown: list[ref[ReplicaBuffers]] = []

    def add(self, modules: Iterable[nn.Module]) -> None:
        """Let modules have buffers for each replica; their parts are left alone."""
        if not self._others:
            return
        for module in modules:
            if module._buffers and not isinstance(module._buffers, ReplicaBuffers):
                buffers = ReplicaBuffers(module._buffers, self._others)
                module._buffers = buffers
                living = [one for one in self._shown if one() is not None]
                self._shown = [*living, ref(buffers)]

    def follow_first(self) -> None:
        """Let the buffers of all replicas be equal to those of the first one."""
        for shown in self._shown:
            if (buffers := shown()) is not None:
                buffers.follow_first()

    def __deepcopy__(self, memo: dict[int, Any]) -> BufferRegistry:
        """Return an empty one: modules stay with the strategy they were built in."""
        return BufferRegistry((torch.device("cpu"), *self._others))


class ReplicaBuffers(ReplicaView["Tensor | None"]):
    """The `_buffers` of a module, with the current replica's tensors as values.

    Args:
        buffers: The buffers of the module until now.
        others: The devices of the replicas after the first.
    """

    def __init__(self, buffers: _Buffers, others: Sequence[torch.device]) -> None:
        super().__init__(buffers)
        self._others: list[tuple[torch.device, _Buffers]] = [(device, {}) for device in others]
        self.follow_first()

    def follow_first(self) -> None:
        """Copy the first replica's buffers to the others."""
        for device, own in self._others:
            for key in [key for key in own if key not in self]:
                del own[key]
            for key, value in dict.items(self):
                own[key] = _copied(value, own.get(key), device)

    def _own(self) -> _Buffers:
        index = current_replica_id() or 0
        return self._others[index - 1][1] if index else {}

    def __getitem__(self, key: str) -> Tensor | None:
        own = self._own()
        return own[key] if key in own else super().__getitem__(key)

    def __setitem__(self, key: str, value: Tensor | None) -> None:
        own = self._own()
        if key in own:
            own[key] = value
        else:
            super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        return self._own().get(key, value)


def _copied(value: Tensor | None, earlier: Tensor | None, device: torch.device) -> Tensor | None:
    if value is None:
        return None
    fits = earlier is not None and earlier.shape == value.shape
    if earlier is None or not fits or earlier.dtype != value.dtype:
        return value.detach().to(device, copy=True)
    with torch.no_grad():
        return earlier.copy_(value)
