"""Update programs and the limits of their gradients, as messages and back."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem_proto.programs.gradient_limits import GradientLimits
from stratagem_proto.programs.optimizers import (
    OptimizerRule,
    TypedNumber,
    Value,
    require_honoured,
)
from stratagem_proto.v1.update_program_pb2 import (
    NONFINITE_ACTION_RAISE,
    NONFINITE_ACTION_REJECT,
    NONFINITE_ACTION_UNSPECIFIED,
    NONFINITE_ACTION_ZERO,
    Hyperparameter,
    HyperparameterGroup,
    NonfiniteAction,
    NumberList,
)
from stratagem_proto.v1.update_program_pb2 import GradientLimits as LimitsMessage
from stratagem_proto.v1.update_program_pb2 import TypedNumber as TypedMessage
from stratagem_proto.wire.tensors import decode_dtype, encode_dtype

_ACTIONS: Mapping[str | None, NonfiniteAction] = {
    None: NONFINITE_ACTION_UNSPECIFIED,
    "reject": NONFINITE_ACTION_REJECT,
    "zero": NONFINITE_ACTION_ZERO,
    "raise": NONFINITE_ACTION_RAISE,
}
_WORDS = {action: word for word, action in _ACTIONS.items()}


def encode_values(values: Mapping[str, Value]) -> HyperparameterGroup:
    """Return the hyperparameters of a param group, of `values_of`, as a message."""
    return HyperparameterGroup(values={key: _encode(v) for key, v in values.items()})


def _encode(value: Value) -> Hyperparameter:
    match value:
        case bool():
            return Hyperparameter(flag=value)
        case int():
            return Hyperparameter(integer=value)
        case float():
            return Hyperparameter(number=value)
        case tuple():
            return Hyperparameter(numbers=NumberList(values=value))
        case TypedNumber(number, dtype, is_tensor):
            typed = TypedMessage(number=number, dtype=encode_dtype(dtype), is_tensor=is_tensor)
            return Hyperparameter(typed=typed)
    return Hyperparameter()


def decode_group(rule: OptimizerRule, group: HyperparameterGroup) -> dict[str, Value]:
    """Return the hyperparameters of a message as keyword arguments.

    Raises:
        InvalidArgumentError: A key is not the optimizer's, or a flag is set that servers cannot
            honour.
    """
    values = decode_values(group)
    require_honoured(rule, values)
    return values


def decode_values(group: HyperparameterGroup) -> dict[str, Value]:
    """Return the hyperparameters of a message, whatever they are."""
    return {key: _decode(value) for key, value in group.values.items()}


def _decode(value: Hyperparameter) -> Value:
    match value.WhichOneof("kind"):
        case "flag":
            return value.flag
        case "integer":
            return value.integer
        case "number":
            return value.number
        case "numbers":
            return tuple(value.numbers.values)
        case "typed":
            typed = value.typed
            return TypedNumber(typed.number, decode_dtype(typed.dtype), typed.is_tensor)
    return None


def encode_limits(limits: GradientLimits) -> LimitsMessage:
    """Return the limits of gradients as a message."""
    return LimitsMessage(
        on_nonfinite=_ACTIONS[limits.on_nonfinite],
        clip_value=limits.clip_value,
        clip_norm=limits.clip_norm,
    )


def decode_limits(message: LimitsMessage) -> GradientLimits:
    """Return the limits of a message.

    Raises:
        InvalidArgumentError: They are not valid; see `GradientLimits`.
    """
    return GradientLimits(
        _WORDS.get(message.on_nonfinite, "of another version"),
        message.clip_value if message.HasField("clip_value") else None,
        message.clip_norm if message.HasField("clip_norm") else None,
    )
