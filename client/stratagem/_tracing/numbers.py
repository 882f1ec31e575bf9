"""Python numbers of which only the type is known while a function is traced.

A number that the function was given or captures differs from call to call, as a learning rate does.
Its stand-in takes part in arithmetic and goes wherever torch takes a number; each operation is
recorded. What would reveal the number is refused.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch

from stratagem._tracing.source import refused
from stratagem_proto.errors import StratagemError
from stratagem_proto.programs.operations import INT64, Number, evaluate_scalar


class ArithmeticRecorder(Protocol):
    """What numbers need of the recording that they take part in."""

    def arithmetic(self, operation: str, operands: tuple[Any, ...]) -> Any:
        """Record a scalar operation and return the key of its result."""

    def fix(self, key: Any) -> None:
        """Note that a number became part of the program."""

    def reveal(self, keys: Sequence[Any], refusal: StratagemError) -> NoReturn:
        """Say what follows from code that has to know numbers, which is an error."""


class NumberNode:
    """What torch carries through its dispatcher in place of a number.

    Attributes:
        recorder: The recording that the number belongs to.
        key: What the recording knows the number by.
        example: The number in the call that is being traced.
        label: What messages call it.
    """

    def __init__(self, recorder: ArithmeticRecorder, key: Any, example: Number, label: str) -> None:
        self.recorder = recorder
        self.key = key
        self.example = example
        self.label = label

    def is_int(self) -> bool:
        return isinstance(self.example, int)

    def is_float(self) -> bool:
        return isinstance(self.example, float)

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def maybe_as_int(self) -> None:
        return None

    def guard_int(self, file: str, line: int) -> int:
        """Return the number where torch needs a size, a dimension or an index.

        It becomes part of the program, which is therefore right for it only.
        """
        self.recorder.fix(self.key)
        return int(self.example)

    def guard_float(self, file: str, line: int) -> float:
        refusal = refused(
            f"{self.label} is used where its value would be fixed in the program",
            "torch takes no changing number there: make it a tensor with "
            "torch.full((), number) and use tensor operations",
        )
        self.recorder.reveal([self.key], refusal)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        refusal = refused(
            f"{self.label} cannot be used in {name!r} on a server",
            "compute it before and pass the result as an argument",
        )
        self.recorder.reveal([self.key], refusal)


class UnknownComparison:
    """The outcome of a comparison of numbers that are not known yet."""

    def __init__(self, *nodes: NumberNode) -> None:
        self._nodes = nodes

    def __bool__(self) -> bool:
        refusal = refused(
            f"a branch depends on {self._nodes[0].label}, whose value may differ in each call",
            "decide it outside of the update function and pass a bool, or use "
            "torch.where or torch.clamp",
        )
        self._nodes[0].recorder.reveal([node.key for node in self._nodes], refusal)


def _binary(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    operation = f"scalar.{name}"

    def forward(self: Any, other: object) -> Any:
        if not isinstance(other, int | float | TracedInt | TracedFloat):
            return NotImplemented
        return _calculated(operation, self, other)

    def reflected(self: Any, other: object) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return _calculated(operation, other, self)

    return forward, reflected


def _unary(name: str) -> Callable[[Any], Any]:
    return lambda self: _calculated(f"scalar.{name}", self)


def _calculated(operation: str, *operands: Any) -> Any:
    node = next(node_of(one) for one in operands if is_traced(one))
    example = evaluate_scalar(operation, *map(example_of, operands))
    key = node.recorder.arithmetic(operation, operands)
    return traced(NumberNode(node.recorder, key, example, "a number computed from it"))


def _compared(self: Any, other: object) -> Any:
    return UnknownComparison(*[node_of(one) for one in (self, other) if is_traced(one)])


class _Arithmetic:
    """Python's operators on numbers, recorded."""

    __add__, __radd__ = _binary("add")
    __sub__, __rsub__ = _binary("sub")
    __mul__, __rmul__ = _binary("mul")
    __truediv__, __rtruediv__ = _binary("truediv")
    __floordiv__, __rfloordiv__ = _binary("floordiv")
    __mod__, __rmod__ = _binary("mod")
    __pow__, __rpow__ = _binary("pow")
    __neg__ = _unary("neg")
    __abs__ = _unary("abs")
    # Names by which numpy's functions ask an object to do it.
    sqrt = __sym_sqrt__ = _unary("sqrt")
    exp = _unary("exp")
    log = _unary("log")
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compared
    __hash__ = object.__hash__

    def __pos__(self) -> Any:
        return self

    def __bool__(self) -> bool:
        return bool(UnknownComparison(node_of(self)))

    def __float__(self) -> float:
        refusal = refused(
            f"float() would fix {node_of(self).label} in the program",
            "use the number as it is; sqrt, exp, log and pow of math take it",
        )
        node_of(self).recorder.reveal([node_of(self).key], refusal)

    def __repr__(self) -> str:
        return f"<{node_of(self).label}>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)


class TracedFloat(_Arithmetic, torch.SymFloat):
    """Stands in for a float."""


class TracedInt(_Arithmetic, torch.SymInt):
    """Stands in for an int."""

    def __index__(self) -> int:
        return node_of(self).guard_int("", 0)

    __int__ = __index__


def traced(node: NumberNode) -> TracedInt | TracedFloat:
    """Return the stand-in for the number of a node."""
    kind: Any = TracedInt if node.is_int() else TracedFloat
    stand_in: TracedInt | TracedFloat = kind(node)
    return stand_in


def is_traced(value: object) -> bool:
    """Return whether a value is a stand-in, maybe after it went through torch."""
    return isinstance(value, torch.SymInt | torch.SymFloat)


def node_of(value: Any) -> NumberNode:
    """Return the node of a stand-in."""
    node: NumberNode = value.node
    return node


def example_of(value: Any) -> Any:
    """Return the number behind a stand-in in the call that is being traced."""
    return node_of(value).example if is_traced(value) else value


def as_number(value: object) -> Number | None:
    """Return the Python number that a value is, if it changes between calls.

    A bool is none: it says which program is wanted. Nor is an int beyond 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    if not isinstance(value, numbers.Integral):
        return float(value)
    return int(value) if int(value) in INT64 else None


def _function(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def calculated(*operands: Any) -> Any:
        if any(is_traced(one) for one in operands):
            return _calculated(f"scalar.{name}", *operands)
        return original(*operands)

    return calculated


class _Math:
    """The module `math`, with functions that take stand-ins."""

    sqrt = staticmethod(_function("sqrt", math.sqrt))
    exp = staticmethod(_function("exp", math.exp))
    log = staticmethod(_function("log", math.log))
    pow = staticmethod(_function("pow", math.pow))

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)


# What a traced function sees in place of these objects, by identity.
MATH_STAND_INS: dict[int, object] = {
    id(math): _Math(),
    **{id(getattr(math, name)): getattr(_Math, name) for name in ("sqrt", "exp", "log", "pow")},
}
