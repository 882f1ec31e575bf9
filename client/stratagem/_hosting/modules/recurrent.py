"""Recurrent modules of torch, which keep their weights in a second place."""

from __future__ import annotations

from typing import Any
from weakref import ref

from torch import Tensor, nn


def follow_replica(module: nn.Module) -> None:
    """Let a recurrent module take its weights from its parameters at each use.

    `nn.RNNBase` caches them in lists, one per module object, and rebuilds the lists where they
    differ from the parameters. Several replicas would do so at each turn, and in each other's
    forward when they run concurrently.
    """
    if isinstance(module, nn.RNNBase) and not isinstance(module, Following):
        for cache_name in ("_flat_weights", "_flat_weight_refs"):
            del module.__dict__[cache_name]
        module.__class__ = _following(type(module))


class Following:
    """Mixin that computes what `nn.RNNBase` caches."""

    _flat_weights_names: list[str]

    @property
    def _flat_weights(self) -> list[Tensor | None]:
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, weights: list[Tensor | None]) -> None:
        """Nothing is cached."""

    @property
    def _flat_weight_refs(self) -> list[ref[Tensor] | None]:
        return [None if w is None else ref(w) for w in self._flat_weights]

    @_flat_weight_refs.setter
    def _flat_weight_refs(self, weights: list[ref[Tensor] | None]) -> None:
        """Nothing is cached."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_flat_weights": self._flat_weights}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Copies are of torch's own class, and know of no replicas.
        plain = plain_class(self)
        return plain.__new__, (plain,), self.__getstate__()


def plain_class(module: object) -> type:
    """Return the class that a module had before it followed replicas."""
    cls = type(module)
    return cls.__mro__[2] if isinstance(module, Following) else cls


_kinds: dict[type[nn.RNNBase], type[nn.RNNBase]] = {}


def _following(kind: type[nn.RNNBase]) -> type[nn.RNNBase]:
    if kind not in _kinds:
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _kinds[kind] = type(kind.__name__, (Following, kind), names)
    return _kinds[kind]
