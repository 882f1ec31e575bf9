"""What a worker loads of the wire: any code, or only what it can import itself."""

from __future__ import annotations

import io
import pickle
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FunctionType
from typing import Any, ClassVar

import torch

from stratagem._core.options import ReduceOp
from stratagem._shipping.call import FunctionCall
from stratagem._shipping.pickling import Classes, Unpickler, _rebuilt, partial_of
from stratagem._shipping.value_writer import DTYPES
from stratagem.consistency import Async
from stratagem_proto.errors import PermissionDeniedError

Find = Callable[[int], Any]
"""Returns what has a handle."""


class LoadableCode(ABC):
    """Which code the coordinator's messages may have or name."""

    @abstractmethod
    def read(self, payload: bytes, find: Find, classes: Classes) -> Any:
        """Return what `Pickler` has written.

        Raises:
            PermissionDeniedError: It has code, or names some, that may not be loaded.
        """


class AnyCode(LoadableCode):
    """Functions and classes travel, by name or by value."""

    def read(self, payload: bytes, find: Find, classes: Classes) -> Any:
        return Unpickler(payload, classes, find).load()


class NamedCode(LoadableCode):
    """Functions and classes of some modules of the worker's own, which messages name.

    Args:
        modules: The modules, and packages with all that is in them.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules

    def read(self, payload: bytes, find: Find, classes: Classes) -> Any:
        return _NamedCodeUnpickler(payload, find, self._modules).load()


_CALLED = (FunctionCall, partial_of, _rebuilt, ReduceOp, Async, OrderedDict)
"""What is called while a message is read, besides finding what has a handle."""

_BY_NAME = {(each.__module__, each.__qualname__): each for each in _CALLED}

_OBJECT_OF = (Unpickler.__module__, "_object_of")

# What the library itself has workers do.
_OWN_MODULE = "stratagem._coordinator.per_worker"
_OWN_FUNCTIONS = {"_same", "_made_by", "_opened", "_made", "_itself"}

_LIBRARY = {"torch.nn.modules.": torch.nn.Module, "torch.optim.": torch.optim.Optimizer}
"""Packages of PyTorch, and the class of which theirs may be named."""


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _refuse(unpickler: _NamedCodeUnpickler) -> None:
    unpickler.refuse("an object that travels by value")


def _call(unpickler: _NamedCodeUnpickler) -> None:
    args = unpickler.stack.pop()
    function = unpickler.stack[-1]
    if function is not unpickler.find and not any(function is each for each in _CALLED):
        unpickler.refuse(f"a call of {getattr(function, '__qualname__', type(function).__name__)}")
    unpickler.stack[-1] = function(*args)


_BY_VALUE = (
    pickle.BUILD,
    pickle.INST,
    pickle.OBJ,
    pickle.NEWOBJ,
    pickle.NEWOBJ_EX,
    pickle.EXT1,
    pickle.EXT2,
    pickle.EXT4,
    pickle.PERSID,
    pickle.BINPERSID,
    pickle.NEXT_BUFFER,
    pickle.READONLY_BUFFER,
)
"""Instructions of pickles that make or change objects in ways that their classes define."""


class _NamedCodeUnpickler(pickle._Unpickler):
    """Reads data, and calls nothing that is not on the list.

    The one of CPython that is written in Python, since its instructions can be replaced.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        **{instruction[0]: _refuse for instruction in _BY_VALUE},
        pickle.REDUCE[0]: _call,
    }

    stack: list[Any]

    def __init__(self, payload: bytes, find: Find, modules: Sequence[str]) -> None:
        super().__init__(io.BytesIO(payload))
        self.find, self._modules = find, modules

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == _OBJECT_OF:
            return self.find
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if (module, name) in _BY_NAME:
            return _BY_NAME[module, name]
        found = self._importable(module, name)
        if found is None:
            self.refuse(f"{module}.{name}")
        return found

    def _importable(self, module: str, name: str) -> Any:
        for package, kind in _LIBRARY.items():
            if module.startswith(package):
                found = _named(module, name)
                return found if isinstance(found, type) and issubclass(found, kind) else None
        if any(_is_in(module, each) for each in self._modules):
            return _named(module, name)
        if module == _OWN_MODULE and name in _OWN_FUNCTIONS:
            return _named(module, name)
        return None

    def refuse(self, what: str) -> None:
        """Raise the error of something that may not be loaded."""
        listed = ", ".join(self._modules)
        raise PermissionDeniedError(
            f"this worker loads no code from others (--importable-only {listed}), and was sent "
            f"{what}. Put the function, and the classes that it takes, into one of these modules, "
            "and pass numbers, strings, tensors, and what was made in the strategy's scope"
        )


def _named(module: str, name: str) -> Any:
    """Return the function or class that a module defines itself under a name; None if none."""
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    is_code = isinstance(found, FunctionType | type)
    return found if is_code and found.__module__ == module else None
