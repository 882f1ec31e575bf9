"""The allow-list of operations that a graph program may call.

Everything here computes new tensors, makes views, or writes its first argument in place. Nothing
reads files, random state, uninitialised memory or a tensor's address, and no result's size depends
on the contents of a tensor, so that the memory of a program can be known before it runs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import torch

from stratagem_proto.errors import InvalidArgumentError

_ELEMENTWISE = """
abs.default acos.default acosh.default add.Scalar add.Tensor addcdiv.default
addcmul.default asin.default asinh.default atan.default atan2.default atanh.default
bitwise_and.Scalar bitwise_and.Tensor bitwise_not.default bitwise_or.Scalar
bitwise_or.Tensor bitwise_xor.Scalar bitwise_xor.Tensor ceil.default clamp.Tensor
clamp.default clamp_max.Tensor clamp_max.default clamp_min.Tensor clamp_min.default
copysign.Scalar copysign.Tensor cos.default cosh.default div.Scalar div.Scalar_mode
div.Tensor div.Tensor_mode elu.default eq.Scalar eq.Tensor erf.default erfc.default
exp.default exp2.default expm1.default floor.default floor_divide.Scalar
floor_divide.default fmax.default fmin.default fmod.Scalar fmod.Tensor frac.default
ge.Scalar ge.Tensor gelu.default gt.Scalar gt.Tensor hardtanh.default hypot.default
isinf.default isnan.default le.Scalar le.Tensor leaky_relu.default lerp.Scalar
lerp.Tensor log.default log10.default log1p.default log2.default
log_sigmoid_forward.default logaddexp.default logical_and.default logical_not.default
logical_or.default logical_xor.default lt.Scalar lt.Tensor masked_fill.Scalar
masked_fill.Tensor maximum.default minimum.default mul.Scalar mul.Tensor
nan_to_num.default ne.Scalar ne.Tensor neg.default pow.Scalar pow.Tensor_Scalar
pow.Tensor_Tensor reciprocal.default relu.default remainder.Scalar
remainder.Scalar_Tensor remainder.Tensor round.decimals round.default rsqrt.default
rsub.Scalar rsub.Tensor sgn.default sigmoid.default sign.default signbit.default silu.default
sin.default sinh.default softplus.default sqrt.default sub.Scalar sub.Tensor
tan.default tanh.default threshold.default tril.default triu.default trunc.default
where.self xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor
"""

_ELEMENTWISE_IN_PLACE = """
abs_.default add_.Scalar add_.Tensor addcdiv_.default addcmul_.default
bitwise_and_.Scalar bitwise_and_.Tensor bitwise_not_.default bitwise_or_.Scalar
bitwise_or_.Tensor bitwise_xor_.Scalar bitwise_xor_.Tensor ceil_.default clamp_.Tensor
clamp_.default clamp_max_.Tensor clamp_max_.default clamp_min_.Tensor
clamp_min_.default copy_.default copysign_.Scalar copysign_.Tensor cos_.default
div_.Scalar div_.Scalar_mode div_.Tensor div_.Tensor_mode elu_.default eq_.Scalar
eq_.Tensor erf_.default exp_.default exp2_.default expm1_.default fill_.Scalar
fill_.Tensor floor_.default floor_divide_.Scalar floor_divide_.Tensor fmod_.Scalar
fmod_.Tensor frac_.default ge_.Scalar ge_.Tensor gt_.Scalar gt_.Tensor
hardtanh_.default hypot_.default le_.Scalar le_.Tensor leaky_relu_.default
lerp_.Scalar lerp_.Tensor log_.default log10_.default log1p_.default log2_.default
logical_and_.default logical_not_.default logical_or_.default logical_xor_.default
lt_.Scalar lt_.Tensor masked_fill_.Scalar masked_fill_.Tensor mul_.Scalar mul_.Tensor
nan_to_num_.default ne_.Scalar ne_.Tensor neg_.default pow_.Scalar pow_.Tensor
reciprocal_.default relu_.default remainder_.Scalar remainder_.Tensor round_.decimals
round_.default rsqrt_.default sgn_.default sigmoid_.default sign_.default silu_.default
sin_.default sqrt_.default sub_.Scalar sub_.Tensor tan_.default tanh_.default
threshold_.default tril_.default triu_.default trunc_.default xlogy_.Scalar_Other
xlogy_.Tensor zero_.default
"""

_REDUCTION = """
_log_softmax.default _softmax.default all.default all.dim all.dims amax.default
amin.default aminmax.default any.default any.dim any.dims argmax.default
argmin.default count_nonzero.dim_IntList cummax.default cummin.default cumprod.default
cumsum.default linalg_vector_norm.default logsumexp.default max.default max.dim
mean.default mean.dim min.default min.dim norm.Scalar norm.ScalarOpt_dim prod.default
prod.dim_int sort.default sort.stable std.correction std_mean.correction sum.default
sum.dim_IntList topk.default var.correction var_mean.correction
"""

_PRODUCT = """
addbmm.default addmm.default addmv.default addr.default baddbmm.default bmm.default
dot.default mm.default mv.default
"""

_PRODUCT_IN_PLACE = """
addbmm_.default addmm_.default addmv_.default addr_.default baddbmm_.default
"""

_VIEW = """
_unsafe_view.default diagonal.default expand.default permute.default select.int
slice.Tensor squeeze.default squeeze.dim squeeze.dims t.default transpose.int
unsqueeze.default view.default
"""

_SHAPE = """
_to_copy.default cat.default clone.default constant_pad_nd.default copy.default
flip.default repeat.default roll.default stack.default
"""

_INDEXING = """
gather.default index.Tensor index_add.default index_copy.default index_put.default
index_select.default scatter.src scatter.value scatter_add.default scatter_reduce.two
"""

_INDEXING_IN_PLACE = """
index_add_.default index_copy_.default index_put_.default scatter_.src scatter_.value
scatter_add_.default scatter_reduce_.two
"""

_CREATION = """
arange.default arange.start arange.start_step eye.default eye.m full.default
full_like.default linspace.default new_full.default new_ones.default
new_zeros.default ones.default ones_like.default scalar_tensor.default zeros.default
zeros_like.default
"""


class Effect(Enum):
    """What a call does to memory."""

    NEW = "its results are new"
    VIEW = "its result shares the memory of its first argument"
    WRITE = "it writes its first argument and returns it"


# Their numbers decide the size of the result, so they must be written out.
_SIZED_BY_NUMBERS = frozenset({"arange.default", "arange.start", "arange.start_step"})

_NUMBER_TYPES = frozenset({"number", "float"})

# The operations for which torch takes a Python number where the schema says Tensor.
_NUMBER_AS_TENSOR = frozenset(
    f"{name}{suffix}.{overload}"
    for name in ("add", "sub", "mul", "div", "floor_divide")
    for suffix in ("", "_")
    for overload in ("Tensor", "Tensor_mode", "default")
)


@dataclass(frozen=True)
class OperationParameter:
    """A parameter of an operation.

    Attributes:
        name: Its keyword.
        type: As the ATen schema says it, for instance "Optional[List[int]]".
        required: Whether a call must give it.
        positional: Whether it may be given by position.
        takes_number: Whether a number that is known only at run time may be given.
    """

    name: str
    type: str
    required: bool
    positional: bool
    takes_number: bool


@dataclass(frozen=True)
class Operation:
    """An ATen overload on the allow-list.

    Attributes:
        name: For instance "aten.add_.Tensor".
        effect: What a call does to memory.
        indexed: Whether a call fails when an index tensor's contents are out of range.
        is_product: Whether a call multiplies matrices or vectors, its last two tensors.
    """

    name: str
    effect: Effect
    indexed: bool = False
    is_product: bool = False

    @cached_property
    def overload(self) -> Callable[..., object]:
        """The callable of `torch.ops`."""
        packet, overload = self.name.removeprefix("aten.").split(".")
        found: Callable[..., object] = getattr(getattr(torch.ops.aten, packet), overload)
        return found

    @cached_property
    def schema(self) -> torch._C.FunctionSchema:
        schema: torch._C.FunctionSchema = self.overload._schema  # type: ignore[attr-defined]
        return schema

    @cached_property
    def parameters(self) -> tuple[OperationParameter, ...]:
        """What a program may give; placement on a device is the server's own choice."""
        return tuple(
            self._parameter(argument)
            for argument in self.schema.arguments
            if argument.name not in PLACEMENT
        )

    def _parameter(self, argument: torch._C.Argument) -> OperationParameter:
        return OperationParameter(
            name=argument.name,
            type=str(argument.real_type),
            required=not argument.has_default_value(),
            positional=not argument.kwarg_only,
            takes_number=self._takes_number(argument.name, str(argument.real_type)),
        )

    def _takes_number(self, parameter: str, type_: str) -> bool:
        name = self.name.removeprefix("aten.")
        if type_ == "Tensor":
            return parameter == "other" and name in _NUMBER_AS_TENSOR
        number = type_.removeprefix("Optional[").removesuffix("]") in _NUMBER_TYPES
        return number and name not in _SIZED_BY_NUMBERS

    @cached_property
    def num_results(self) -> int:
        return len(self.schema.returns)

    @cached_property
    def takes_device(self) -> bool:
        """Whether a call makes a tensor where its `device` argument says."""
        return any(argument.name == "device" for argument in self.schema.arguments)


def check_index_types(operation: Operation, arguments: Iterable[object]) -> None:
    """Refuse masks as indices: how much they select depends on their contents.

    Args:
        operation: The operation that is called.
        arguments: Its positional arguments.

    Raises:
        InvalidArgumentError: One of its indices is a mask.
    """
    lists = (one for one in arguments if isinstance(one, list | tuple))
    tensors = (one for items in lists for one in items)
    if operation.indexed and any(
        isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in tensors
    ):
        raise InvalidArgumentError(
            "a mask is used as an index, so that the size of what it selects would "
            "depend on its contents; use torch.where or masked_fill instead"
        )


PLACEMENT = frozenset({"device", "layout", "pin_memory", "non_blocking"})


def _operations() -> Iterator[Operation]:
    for group, effect, indexed in (
        (_ELEMENTWISE, Effect.NEW, False),
        (_REDUCTION, Effect.NEW, False),
        (_PRODUCT, Effect.NEW, False),
        (_SHAPE, Effect.NEW, False),
        (_CREATION, Effect.NEW, False),
        (_INDEXING, Effect.NEW, True),
        (_VIEW, Effect.VIEW, False),
        (_ELEMENTWISE_IN_PLACE, Effect.WRITE, False),
        (_PRODUCT_IN_PLACE, Effect.WRITE, False),
        (_INDEXING_IN_PLACE, Effect.WRITE, True),
    ):
        for name in group.split():
            is_product = group in (_PRODUCT, _PRODUCT_IN_PLACE)
            yield Operation(f"aten.{name}", effect, indexed, is_product)


OPERATIONS: Mapping[str, Operation] = {operation.name: operation for operation in _operations()}

# Those whose result has in each element what the same elements of the arguments lead to.
ELEMENTWISE = frozenset(
    f"aten.{name}"
    for name in (_ELEMENTWISE + _ELEMENTWISE_IN_PLACE).split()
    if OPERATIONS[f"aten.{name}"].num_results == 1 and not name.startswith(("tril", "triu"))
)

# String arguments that some operation takes; torch refuses the wrong ones.
TEXTS = frozenset(
    {"amax", "amin", "mean", "prod", "sum"}  # reduce
    | {"floor", "trunc"}  # rounding_mode
    | {"none", "tanh"}  # approximate
)
MEMORY_FORMATS = frozenset({"contiguous_format", "preserve_format"})

Number = int | float

# What an integer on the wire can be.
INT64 = range(-(1 << 63), 1 << 63)


def _bounded_power(base: Number, exponent: Number) -> Number:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(base) > 1 and exponent > 63:
        raise OverflowError("the power does not fit 64 bits")
    power: Number = base**exponent
    return power


# Arithmetic on numbers, with Python's meaning.
SCALAR_OPERATIONS: Mapping[str, Callable[..., Number]] = {
    "scalar.abs": abs,
    "scalar.add": operator.add,
    "scalar.exp": math.exp,
    "scalar.floordiv": operator.floordiv,
    "scalar.log": math.log,
    "scalar.mod": operator.mod,
    "scalar.mul": operator.mul,
    "scalar.neg": operator.neg,
    "scalar.pow": _bounded_power,
    "scalar.sqrt": math.sqrt,
    "scalar.sub": operator.sub,
    "scalar.truediv": operator.truediv,
}
SCALAR_ARITY: Mapping[str, int] = {
    name: 1 if name.split(".")[1] in {"abs", "exp", "log", "neg", "sqrt"} else 2
    for name in SCALAR_OPERATIONS
}


# The number in a tensor of one element, when the program comes to it.
ITEM = "scalar.item"


def evaluate_scalar(name: str, *operands: Number) -> Number:
    """Return the result of a scalar operation.

    Raises:
        ArithmeticError: Division by zero, or an integer that does not fit 64 bits.
        ValueError: Outside of the function's domain, or a complex result.
    """
    result = SCALAR_OPERATIONS[name](*operands)
    if isinstance(result, complex):
        raise ValueError(f"the result of {name} is complex")
    if isinstance(result, int) and result not in INT64:
        raise OverflowError(f"the result of {name} does not fit 64 bits")
    return result
