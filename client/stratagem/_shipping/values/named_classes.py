"""Classes of named tuples, which a reader finds among those that it has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from cloudpickle import cloudpickle

from stratagem_proto.v1 import plain_value_pb2 as pb

Known = Callable[[str], "type | None"]
"""Returns the class that the program has sent by value under an identity."""

_LOCAL = "<locals>"


def known_to_program(identity: str) -> type | None:
    """Return the class that this program has sent to workers under an identity."""
    found: type | None = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(identity)
    return found


def is_named_tuple(cls: type) -> bool:
    """Return whether a class is of tuples whose items have names, as `typing.NamedTuple` makes."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_structure(cls: type) -> bool:
    """Return whether functions of torch return such tuples."""
    return issubclass(cls, tuple) and vars(torch.return_types).get(cls.__name__) is cls


def class_name(cls: type) -> pb.ClassName | None:
    """Return the name of a class; None if only this process can have the class."""
    identity = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(cls)
    if identity is not None:
        return pb.ClassName(identity=identity, name=cls.__qualname__)
    if _LOCAL in cls.__qualname__:
        return None
    return pb.ClassName(module=cls.__module__, name=cls.__qualname__)


def found_class(name: pb.ClassName, known: Known) -> type | None:
    """Return the class of a name, if it is loaded and of named tuples. Imports and runs nothing."""
    found = known(name.identity) if name.identity else _loaded(name.module, name.name)
    return found if isinstance(found, type) and is_named_tuple(found) else None


def found_structure(name: pb.ClassName) -> type | None:
    """Return the class of what a function of torch returns."""
    found = vars(torch.return_types).get(name.name)
    return found if isinstance(found, type) and is_structure(found) else None


def _loaded(module: str, name: str) -> Any:
    # By dictionaries: a module may have a `__getattr__` that imports something.
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found
