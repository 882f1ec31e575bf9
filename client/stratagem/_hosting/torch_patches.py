"""All that is changed in torch: classes of its own, and the class of some modules of a program.

docs/architecture/client.md lists it.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.modules import module as torch_module
from torch.optim import Optimizer

_data: Any = torch._C.TensorBase.__dict__["data"]
"""What torch has for all tensors."""


def watch_data(lend: Callable[[Parameter, torch.Tensor], None]) -> None:
    """Tell of each parameter of the process whose data are given out, from now on.

    Args:
        lend: Is told the parameter and its data; the same function in each call.
    """
    if "data" in vars(Parameter):
        return

    def data_of(parameter: Parameter) -> torch.Tensor:
        data: torch.Tensor = _data.__get__(parameter)
        if not torch.compiler.is_compiling():
            lend(parameter, data)
        return data

    setattr(Parameter, "data", property(data_of, _data.__set__))  # noqa: B010


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

    def __exit__(self, *_: object) -> None:
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
        contained = {id(part) for outer in modules for part in outer.modules() if part is not outer}
        return [module for module in modules if id(module) not in contained]

    def __bool__(self) -> bool:
        return bool(self._seen)


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
        set_state: _SetState = nn.Module.__setstate__
        self._set_state = set_state

        @wraps(set_state)
        def set_state_and_notice(module: nn.Module, state: Any) -> None:
            set_state(module, state)
            self._set(module)

        setattr(nn.Module, "__setstate__", set_state_and_notice)  # noqa: B010

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


_sensor = _Sensor()


_METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
# Where torch looks for what it has made of such a method with the compiler.
_KEPT = "__dynamo_disable"


def defer_compiler() -> None:
    """Let methods of optimizers import the compiler no more; once it is there, they use it."""
    for name in _METHODS:
        method = getattr(Optimizer, name)
        plain = inspect.unwrap(method)
        if plain is not method and not hasattr(plain, _KEPT):
            setattr(plain, _KEPT, _deferred(method, plain))


def _deferred(method: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return plain(*args, **kwargs)
        if vars(plain).get(_KEPT) is call:
            vars(plain).pop(_KEPT, None)
        return method(*args, **kwargs)

    # The compiler leaves it alone, as it would what it makes of the method.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call
