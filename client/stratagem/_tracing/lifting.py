"""Copies of functions in which everything that may change is a stand-in.

A function uses its arguments and what it captures: by closure, by global name, by default value,
and as attributes of the object that it is a method of. Numbers, tensors and variables found there
become inputs of the program.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from stratagem._core.tensors import IndexedSlices
from stratagem._core.variables import Variable
from stratagem._tracing.numbers import MATH_STAND_INS, as_number
from stratagem._tracing.source import Location, definition_of, refused

# Larger containers and object graphs hold data, not hyperparameters: they stay as they are.
_MAX_ITEMS = 1_000
_MAX_OBJECTS = 10_000

# These say which program is wanted. A size does, too.
_STATIC = (
    bool,
    str,
    bytes,
    type(None),
    type(...),
    Enum,
    torch.Size,
    torch.device,
    torch.dtype,
    torch.memory_format,
)
_NAMED = (BuiltinFunctionType, FunctionType, ModuleType, type)
_LIBRARIES = frozenset(
    {
        "torch",
        "numpy",
        "stratagem",
        "stratagem_proto",
        "stratagem_reader",
        "stratagem_rpc",
        "stratagem_storage",
    }
)
_CONSTANT_MODULES = frozenset({"torch", "math", "builtins", "operator", "stratagem"})
# The outcome of these does not follow from what a function captures.
_UNPREDICTABLE = frozenset({"__import__", "eval", "exec", "globals", "input", "open", "vars"})


class Inputs(Protocol):
    """Takes note of what becomes an input and says what stands in for it.

    Attributes:
        signature: Describes the inputs; the lifter adds all else that it visits.
    """

    signature: list[Hashable]

    def number(self, number: int | float, label: str) -> Any: ...

    def variable(self, variable: Variable, label: str) -> Any: ...

    def tensor(self, tensor: torch.Tensor, label: str) -> Any: ...


class Lifter:
    """Replaces what may change between calls of a function by stand-ins.

    Attributes:
        predictable: Whether the signature is complete, so that functions with equal signatures do
            the same.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.predictable = True
        self._inputs = inputs
        self._signature = inputs.signature
        # By identity: the order, the original, kept alive, and its replacement.
        self._visited: dict[int, tuple[int, object, Any]] = {}
        # Each gives the present contents of something replaced, by label.
        self._watched: list[Callable[[], Mapping[str, object]]] = []

    def lift(self, value: Any, label: str) -> Any:
        """Return what stands in for a value."""
        if isinstance(value, _STATIC):
            self._signature.append((type(value), value))
            return value
        number = as_number(value)
        if number is not None:
            return self._inputs.number(number, label)
        if isinstance(value, Variable):
            return self._inputs.variable(value, label)
        if isinstance(value, torch.Tensor):
            return self._inputs.tensor(value, label)
        if id(value) in self._visited:
            order, _, replacement = self._visited[id(value)]
            self._signature.append(("again", order))
            return replacement
        return self._lift_object(value, label)

    def contents(self) -> list[Mapping[str, object]]:
        """Return what everything replaced holds at present; see `require_unchanged`."""
        return [dict(read()) for read in self._watched]

    def require_unchanged(self, before: Iterable[Mapping[str, object]], location: Location) -> None:
        """Check that a function left alone what it captures.

        Raises:
            UpdateFunctionError: It assigned a captured name, or changed a captured list, dict or
                object.
        """
        for old, new in zip(before, self.contents(), strict=False):
            for label in old.keys() | new.keys():
                if old.get(label) is not new.get(label):
                    raise refused(
                        f"the update function changes {label!r}, which it captures; "
                        "later calls would not do that again",
                        "change it outside of the function",
                        location,
                    )

    def _lift_object(self, value: Any, label: str) -> Any:
        if id(value) in MATH_STAND_INS:
            self._signature.append(("math", id(value)))
            return MATH_STAND_INS[id(value)]
        lift = _LIFTS.get(_form_of(value))
        if lift is None or len(self._visited) > _MAX_OBJECTS:
            return self._constant(value)
        return lift(self, value, label)

    def _constant(self, value: Any) -> Any:
        """Leave a value as it is, whatever it may hold."""
        if isinstance(value, _NAMED) and _root_of(value) in _CONSTANT_MODULES:
            # Itself, so that no other object can come to have its identity.
            self._signature.append(value)
        else:
            self.predictable = False
        return self._remember(value, value)

    def _remember(self, original: object, replacement: Any) -> Any:
        self._visited[id(original)] = (len(self._visited), original, replacement)
        return replacement

    def _list(self, value: list[Any], label: str) -> Any:
        self._signature.append((list, len(value)))
        if len(value) > _MAX_ITEMS:
            return self._constant(value)
        items: list[Any] = self._remember(value, [])
        items += [self.lift(one, f"{label}[{i}]") for i, one in enumerate(value)]
        self._watched.append(lambda: {f"{label}[{i}]": v for i, v in enumerate(items)})
        return items

    def _tuple(self, value: tuple[Any, ...], label: str) -> Any:
        self._signature.append((type(value), len(value)))
        if len(value) > _MAX_ITEMS:
            return self._constant(value)
        items = [self.lift(one, f"{label}[{i}]") for i, one in enumerate(value)]
        return self._remember(value, getattr(type(value), "_make", tuple)(items))

    def _dict(self, value: dict[Any, Any], label: str) -> Any:
        self._signature.append((dict, tuple(value)))
        if len(value) > _MAX_ITEMS:
            return self._constant(value)
        items: dict[Any, Any] = self._remember(value, {})
        for key, item in value.items():
            items[key] = self.lift(item, f"{label}[{key!r}]")
        self._watched.append(lambda: {f"{label}[{k!r}]": v for k, v in items.items()})
        return items

    def _slices(self, value: IndexedSlices, label: str) -> IndexedSlices:
        self._signature.append((IndexedSlices, value.dense_shape))
        self.lift(value.values, f"{label}.values")
        self.lift(value.indices, f"{label}.indices")
        return value

    def _partial(self, value: functools.partial[Any], label: str) -> Any:
        function = self.lift(value.func, label)
        args = self.lift(value.args, label)
        return functools.partial(function, *args, **self.lift(value.keywords, label))

    def _method(self, value: MethodType, label: str) -> Any:
        owner = self.lift(value.__self__, "self")
        return MethodType(self.lift(value.__func__, label), owner)

    def _module(self, value: ModuleType, label: str) -> Any:
        self.predictable = False
        return self._remember(value, _ModuleView(self, value, label))

    def _object(self, value: Any, label: str) -> Any:
        # Its class may use globals, which are not visited.
        self.predictable = False
        make: Any = type(value).__new__
        copy = self._remember(value, make(type(value)))
        self._fill_attributes(copy, value, label)
        return copy

    def _fill_attributes(self, copy: Any, original: Any, label: str) -> None:
        held = vars(copy)
        for name, attribute in vars(original).items():
            self._signature.append(("attribute", name))
            held[name] = self.lift(attribute, f"{label}.{name}")
        self._watched.append(lambda: {f"{label}.{k}": v for k, v in held.items()})

    def _function(self, value: FunctionType, label: str) -> Any:
        names, predictable = _names_in(value.__code__)
        self._signature.append(value.__code__)
        self.predictable &= predictable
        cells = tuple(CellType() for _ in value.__closure__ or ())
        namespace = self._namespace(value.__globals__)
        copy = FunctionType(value.__code__, namespace, value.__name__, None, cells)
        self._remember(value, copy)
        copy.__defaults__ = self.lift(value.__defaults__, label)
        copy.__kwdefaults__ = self.lift(value.__kwdefaults__, label)
        self._fill_attributes(copy, value, label)
        self._fill_cells(value, cells)
        if _top(value.__globals__.get("__name__")) not in _LIBRARIES:
            self._fill_namespace(namespace, value.__globals__, names)
        return copy

    def _fill_cells(self, fn: FunctionType, cells: tuple[CellType, ...]) -> None:
        names = fn.__code__.co_freevars
        for name, old, new in zip(names, fn.__closure__ or (), cells, strict=True):
            try:
                contents = old.cell_contents
            except ValueError:  # it has none yet
                self.predictable = False
            else:
                new.cell_contents = self.lift(contents, name)
        self._watched.append(
            lambda: {
                name: cell.cell_contents if cell != CellType() else None
                for name, cell in zip(names, cells, strict=True)
            }
        )

    def _namespace(self, original: dict[str, Any]) -> dict[str, Any]:
        if id(original) not in self._visited:
            copy = self._remember(original, dict(original))
            self._watched.append(lambda: copy)
        namespace: dict[str, Any] = self._visited[id(original)][2]
        return namespace

    def _fill_namespace(
        self, namespace: dict[str, Any], original: dict[str, Any], names: Iterable[str]
    ) -> None:
        for name in names:
            if name in original:
                self._signature.append(("global", name))
                namespace[name] = self.lift(original[name], name)


class _ModuleView:
    """A module of the user, whose attributes are lifted when they are looked up."""

    def __init__(self, lifter: Lifter, module: ModuleType, label: str) -> None:
        vars(self).update(_lifter=lifter, _module=module, _label=label)

    def __getattr__(self, name: str) -> Any:
        return self._lifter.lift(getattr(self._module, name), f"{self._label}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        raise refused(
            f"the update function assigns {self._label}.{name}", "assign it outside of the function"
        )


def _form_of(value: Any) -> object:
    """Return the key of `_LIFTS` that a value belongs to; None if it stays as it is."""
    kind = type(value)
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return tuple
    if isinstance(value, ModuleType):
        kind = ModuleType
    foreign = _root_of(value) in _LIBRARIES
    if kind in (FunctionType, ModuleType) and foreign:
        return None
    if kind is ModuleType and _root_of(value) in sys.stdlib_module_names:
        return None
    return kind if kind in _LIFTS else _plain_object_form(kind)


def _plain_object_form(kind: type) -> object:
    """Return `object` if an instance can be copied without running its code."""
    if kind is SimpleNamespace:
        return object
    root = _top(kind.__module__)
    make: object = kind.__new__
    plain = (
        make is object.__new__
        and kind.__dictoffset__ != 0
        and root not in _LIBRARIES | sys.stdlib_module_names
        and not issubclass(kind, torch.nn.Module | torch.optim.Optimizer)
        and not hasattr(kind, "__del__")
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
    )
    return object if plain else None


def _root_of(value: Any) -> str:
    """Return the top-level package of a module, or of a value's definition."""
    if isinstance(value, ModuleType):
        return _top(value.__name__)
    definition = value if isinstance(value, _NAMED) else type(value)
    root = _top(definition.__module__)
    if isinstance(value, FunctionType) and root in _LIBRARIES:
        # A wrapper says that it is of the module of what it wraps.
        return _top(value.__globals__.get("__name__"))
    return root


def _top(module: str | None) -> str:
    return (module or "").split(".")[0]


@functools.lru_cache(maxsize=1024)
def _names_in(code: CodeType) -> tuple[list[str], bool]:
    """Return the globals that a function may look up, and whether it is predictable."""
    names = set(code.co_names)
    imports = any(one.opname == "IMPORT_NAME" for one in dis.get_instructions(code))
    predictable = not imports and names.isdisjoint(_UNPREDICTABLE)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner, also = _names_in(constant)
            names.update(inner)
            predictable &= also
    return sorted(names), predictable


_LIFTS: dict[object, Callable[[Lifter, Any, str], Any]] = {
    list: Lifter._list,
    tuple: Lifter._tuple,
    dict: Lifter._dict,
    object: Lifter._object,
    IndexedSlices: Lifter._slices,
    functools.partial: Lifter._partial,
    FunctionType: Lifter._function,
    MethodType: Lifter._method,
    ModuleType: Lifter._module,
}


# Attributes of every optimizer that do not change what a step does, or that a trace replaces.
_TORCHS_OWN = frozenset(vars(Optimizer([torch.zeros(1)], {}))) - {"defaults"}
_OF_SCHEDULERS = frozenset({"step", "_opt_called", "_step_count", "_with_counter"})
# Methods that no step calls.
_NO_STEPS = frozenset({"add_param_group", "zero_grad", "state_dict", "load_state_dict"})


class _Constants:
    """Takes what optimizers capture for constants; a changed one leads to another signature."""

    def __init__(self) -> None:
        self.signature: list[Hashable] = []

    def number(self, number: int | float, label: str) -> Any:
        self.signature.append((type(number), number))
        return number

    def variable(self, variable: Variable, label: str) -> Any:
        raise refused(
            f"the optimizer uses the variable {variable.name!r} as {label}",
            "keep what its steps need in self.state and in the param groups",
        )

    def tensor(self, tensor: torch.Tensor, label: str) -> Any:
        content = tensor.item() if tensor.numel() == 1 else (id(tensor), tensor._version)
        self.signature.append((tensor.dtype, tensor.shape, content))
        return tensor


class _OptimizerLifter(Lifter):
    def __init__(self, constants: _Constants, bases: tuple[type, ...]) -> None:
        super().__init__(constants)
        self._bases = bases

    def _constant(self, value: Any) -> Any:
        is_class = isinstance(value, type)
        if is_class and (value in self._bases or issubclass(value, BaseException)):
            # The attributes of the bases are visited by themselves.
            self._signature.append(value)
            return self._remember(value, value)
        return super()._constant(value)


class Captured:
    """What a step of an optimizer captures, with copies of it for a trace.

    Functions are copied as those of `extended.update`, so that they may use `math` on numbers that
    are not known yet. What they capture are constants of the program.

    Attributes:
        is_predictable: Whether all of it was seen, so that steps with equal keys do the same.
        key: Describes all that was seen.
        kind: The class of the optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.kind = type(optimizer)
        constants = _Constants()
        self._lifter = _OptimizerLifter(constants, self.kind.__mro__)
        self._methods = dict(self._lifted_methods())
        self._attributes = {
            name: self._lifter.lift(value, f"self.{name}")
            for name, value in vars(optimizer).items()
            if name not in _TORCHS_OWN and name not in _OF_SCHEDULERS
        }
        self.is_predictable = self._lifter.predictable
        self.key = tuple(constants.signature)
        self._before = self._lifter.contents()

    def _lifted_methods(self) -> Iterator[tuple[str, Any]]:
        for base in reversed(self.kind.__mro__):
            if is_torchs(base.__module__) or base is object:
                continue
            for name, attribute in vars(base).items():
                if name in _NO_STEPS or (name.startswith("__") and name != "__call__"):
                    continue
                yield name, self._lifted_method(attribute, name)

    def _lifted_method(self, attribute: Any, name: str) -> Any:
        match attribute:
            case staticmethod():
                return staticmethod(self._lifter.lift(attribute.__func__, name))
            case classmethod():
                return classmethod(self._lifter.lift(attribute.__func__, name))
            case property():
                return property(self._lifter.lift(attribute.fget, name))
        return self._lifter.lift(plain_function(attribute), name)

    def copy(self, groups: list[dict[str, Any]], state: Mapping[Any, Any]) -> Any:
        """Return a copy of the optimizer that has these groups and this state."""
        kind = type(self.kind.__name__, (self.kind,), dict(self._methods))
        copy: Any = object.__new__(kind)
        vars(copy).update(vars(self._optimizer))
        vars(copy).pop("step", None)
        vars(copy).update(self._attributes)
        vars(copy).update(param_groups=groups, state=state)
        return copy

    def step_of(self, copy: Any) -> Callable[[Any], object]:
        """Return the function that takes the steps of a copy."""
        return plain_function(type(copy).step)  # type: ignore[no-any-return]

    def require_unchanged(self, copy: Any) -> None:
        """Check that a step has changed nothing but groups and state.

        Raises:
            UpdateFunctionError: It has changed something that servers do not have.
        """
        location = definition_of(plain_function(self.kind.step))
        self._lifter.require_unchanged(self._before, location)
        for name, value in vars(copy).items():
            if name in _TORCHS_OWN:
                continue
            known = self._attributes.get(name, getattr(self._optimizer, name, None))
            if value is not known:
                raise refused(
                    f"a step of {self.kind.__name__} assigns self.{name}, which servers do not "
                    "have",
                    "keep it in self.state[parameter]",
                    location,
                )


def is_torchs(module: str) -> bool:
    """Return whether a module is one of PyTorch."""
    return module.split(".")[0] == "torch"


def plain_function(function: Any) -> Any:
    """Return a function without what torch has wrapped around it: `no_grad`, hooks, profiling."""
    while (
        isinstance(function, FunctionType)
        and hasattr(function, "__wrapped__")
        and is_torchs(function.__globals__["__name__"])
    ):
        function = function.__wrapped__
    return function
