"""Names for the buffers of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import ref

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stratagem._core.names import UniqueNames


class NamedBuffers:
    """The buffers that modules have in their `state_dict()`, while the modules live.

    Args:
        names: The names taken in the strategy.
    """

    def __init__(self, names: UniqueNames) -> None:
        self._names = names
        # By id of the module: modules may define equality.
        self._found: dict[tuple[int, str], tuple[ref[nn.Module], str]] = {}

    def add(self, prefix: str, roots: Iterable[nn.Module]) -> None:
        """Name the buffers of modules and their parts that have no name yet.

        Args:
            prefix: Put in front of the names.
            roots: The modules.
        """
        for root in roots:
            for path, module in root.named_modules():
                for key in module._buffers:
                    if key not in module._non_persistent_buffers_set:
                        name = f"{path}.{key}" if path else key
                        self._add(prefix + name, module, key)

    def _add(self, wanted: str, module: nn.Module, key: str) -> None:
        known = self._found.get((id(module), key))
        if known is None or known[0]() is not module:
            name = self._names.choose(wanted)
            self._names.record(name, module)
            self._found[id(module), key] = ref(module), name

    def modules(self) -> list[nn.Module]:
        """Return the living modules that have some, in the order of their naming."""
        found = [owner() for owner, _ in self._found.values()]
        living = {id(module): module for module in found if module is not None}
        return [*living.values()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and tensor of each buffer that has contents."""
        for (_, key), (owner, name) in list(self._found.items()):
            module = owner()
            buffer = None if module is None else module._buffers.get(key)
            if buffer is not None and not is_lazy(buffer):
                yield name, buffer
