"""Seeing which modules a thread builds while a scope is open."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, Protocol
from weakref import ref

from torch import nn
from torch.nn import Parameter
from torch.nn.modules import module as torch_module


class ModuleWatch:
    """Sees the modules that its thread builds while it is open, by `with`.

    torch tells when a module gets a child, a parameter or a buffer, which misses modules that are
    deep-copied or unpickled whole; those are seen where their state is set. Modules are held
    weakly: templates that are copied and dropped, as `nn.TransformerEncoder` does, leave no trace.

    Args:
        found: Called with a module, a key and the parameter that it gets under that key.
    """

    def __init__(self, found: Callable[[nn.Module, str, Parameter], None] | None = None) -> None:
        self._found = found
        # By id: modules may define equality.
        self._seen: dict[int, ref[nn.Module]] = {}

    def __enter__(self) -> ModuleWatch:
        _sensor.open(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _sensor.close(self)

    def see(self, module: nn.Module) -> None:
        """Note that the thread works on `module`."""
        known = self._seen.get(id(module))
        if known is None or known() is not module:
            # A dead module's place would put this one too early in the order.
            self._seen.pop(id(module), None)
            self._seen[id(module)] = ref(module)

    def find(self, module: nn.Module, key: str, parameter: Parameter) -> None:
        """Note that the thread gives a parameter to `module`."""
        if self._found is not None:
            self._found(module, key, parameter)

    def drain(self) -> list[nn.Module]:
        """Return the living modules seen so far that no other one contains.

        They come in the order in which they were first seen, and are forgotten.
        """
        found = [module() for module in self._seen.values()]
        self._seen.clear()
        modules = [module for module in found if module is not None]
        contained = {id(inner) for outer in modules for inner in _descendants(outer)}
        return [module for module in modules if id(module) not in contained]

    def __bool__(self) -> bool:
        return bool(self._seen)


def _descendants(module: nn.Module) -> list[nn.Module]:
    return [inner for inner in module.modules() if inner is not module]


class _Handle(Protocol):
    def remove(self) -> None: ...


_SetState = Callable[[nn.Module, Any], None]


class _Sensor:
    """The hooks in torch, there while any watch of the process is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: defaultdict[int, list[ModuleWatch]] = defaultdict(list)
        self._handles: list[_Handle] = []
        self._set_state: _SetState = nn.Module.__setstate__

    def open(self, watch: ModuleWatch) -> None:
        with self._lock:
            if not self._watches:
                self._install()
            self._watches[threading.get_ident()].append(watch)

    def close(self, watch: ModuleWatch) -> None:
        thread = threading.get_ident()
        with self._lock:
            self._watches[thread].remove(watch)
            if not self._watches[thread]:
                del self._watches[thread]
            if not self._watches:
                self._remove()

    def _install(self) -> None:
        self._handles = [
            torch_module.register_module_module_registration_hook(self._registered),
            torch_module.register_module_parameter_registration_hook(self._registered),
            torch_module.register_module_buffer_registration_hook(self._registered),
        ]
        # A copy registers nothing; setting its state is all that it does.
        self._set_state = nn.Module.__setstate__
        setattr(nn.Module, "__setstate__", _then(self._set_state, self._set))  # noqa: B010

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        setattr(nn.Module, "__setstate__", self._set_state)  # noqa: B010

    def _registered(self, module: nn.Module, name: str, value: object) -> None:
        for watch in self._watches.get(threading.get_ident(), ()):
            watch.see(module)
            if isinstance(value, Parameter):
                watch.find(module, name, value)

    def _set(self, module: nn.Module) -> None:
        for watch in self._watches.get(threading.get_ident(), ()):
            watch.see(module)
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    watch.find(module, key, parameter)


def _then(set_state: _SetState, notice: Callable[[nn.Module], None]) -> _SetState:
    @wraps(set_state)
    def set_state_and_notice(module: nn.Module, state: Any) -> None:
        set_state(module, state)
        notice(module)

    return set_state_and_notice


_sensor = _Sensor()
