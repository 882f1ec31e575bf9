"""Modules as workers have them: built once, with the worker's own parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from stratagem._hosting.adoption import refresh_first
from stratagem._hosting.hosting import Attached, hosting_of
from stratagem._hosting.torch_patches import Following, plain_class
from stratagem._parameter_server.attached import AttachedStrategy
from stratagem._shipping.kinds import Change, ChangingKind, WorkerTask
from stratagem._strategies.strategy import Strategy

_PARAMETERS, _BUFFERS, _MODULES = "_parameters", "_buffers", "_modules"
_HOOKS = "_state_dict_pre_hooks"
_ATTRIBUTE, _BUFFER = "attribute ", "buffer "


class ModuleKind(ChangingKind):
    """A module that was built in the strategy's scope, or a part of one.

    Attributes and buffers travel when they change on the coordinator, each by itself. A worker
    keeps what its functions make of the others, such as running statistics. But whether the module
    trains or evaluates is for the program to say, and for each function by itself.
    """

    name = "module"
    types = (nn.Module,)
    settings = frozenset({_ATTRIBUTE + "training"})

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        hosting = hosting_of(strategy.extended)
        assert hosting is not None
        adopted = hosting.adopter.has_adopted(value)
        return value if adopted and _pickles_its_attributes(value) else None

    def label(self, subject: nn.Module) -> str:
        return f"module {type(subject).__name__}"

    def essence(self, subject: nn.Module, strategy: Strategy) -> Any:
        return strategy, plain_class(subject)

    def make(self, essence: Any, task: WorkerTask) -> nn.Module:
        _, cls = essence
        made: nn.Module = cls.__new__(cls)
        return made

    def state(self, subject: nn.Module) -> Mapping[str, Any]:
        own = _attributes(subject)
        found = {_PARAMETERS: own.pop(_PARAMETERS).copy(), _MODULES: own.pop(_MODULES).copy()}
        buffers = own.pop(_BUFFERS).copy()
        found[_BUFFERS] = tuple(buffers)
        found |= {_BUFFER + key: buffer for key, buffer in buffers.items()}
        return found | {
            _ATTRIBUTE + key: value
            for key, value in own.items()
            if key not in _FRESH or value != _FRESH[key]
        }

    def update(self, made: Any, change: Change) -> None:
        strategy: AttachedStrategy = change.essence[0]
        device = strategy.extended._hosting.devices[0]
        fresh = _fresh()
        whole = _attributes(made) if made.__dict__ else fresh
        for name in _named(dict.fromkeys(change.removed), _ATTRIBUTE):
            del made.__dict__[name], whole[name]
            whole |= {name: fresh[name]} if name in fresh else {}
        whole |= _named(change.state, _ATTRIBUTE)
        for key in _PARAMETERS, _MODULES:
            whole[key] = change.state.get(key, whole.get(key))
        whole[_BUFFERS] = _buffers(whole.get(_BUFFERS, {}), change.state, device)
        made.__setstate__(whole)
        Attached(strategy.extended._hosting).module(made)

    def restore(self, made: nn.Module, settings: Mapping[str, Any]) -> None:
        training = settings.get(_ATTRIBUTE + "training", True)
        if made.training is not training:
            made.training = training


def _pickles_its_attributes(module: nn.Module) -> bool:
    cls = type(module)
    plain = cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__
    return plain or isinstance(module, Following)


def _fresh() -> dict[str, Any]:
    """Return the attributes of a module of which nothing is known."""
    return dict(nn.Module().__dict__)


# To compare with; what is put into a module is made anew.
_FRESH = _fresh()


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return what pickle would keep of a module, less what its strategy put there."""
    _, _, state, *_ = cast("tuple[Any, ...]", module.__reduce_ex__(2))
    found = dict(state)
    found[_HOOKS] = OrderedDict(
        (key, hook) for key, hook in found[_HOOKS].items() if hook is not refresh_first
    )
    return found


def _named(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the part of a state whose keys begin with a prefix, without the prefix."""
    return {
        key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)
    }


def _buffers(
    earlier: Mapping[str, Tensor | None], state: Mapping[str, Any], device: torch.device
) -> dict[str, Tensor | None]:
    """Return the buffers of a module, those that changed in place where they fit."""
    new = _named(state, _BUFFER)
    keys = state.get(_BUFFERS, tuple(earlier))
    return {
        key: _brought(earlier.get(key), new[key], device) if key in new else earlier[key]
        for key in keys
    }


def _brought(earlier: Tensor | None, new: Tensor | None, device: torch.device) -> Tensor | None:
    if new is None or earlier is None:
        return new if new is None else new.to(device)
    if (earlier.shape, earlier.dtype) != (new.shape, new.dtype):
        return new.to(device)
    with torch.no_grad():
        return earlier.copy_(new)
