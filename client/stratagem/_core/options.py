"""The enumerations and small values of the Strategy API, and warnings of its old spellings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from stratagem_proto.errors import InvalidArgumentError

_P = ParamSpec("_P")
_R = TypeVar("_R")

warned: set[str] = set()
"""The spellings and settings that this process has been told about."""


def old_spelling(replacement: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Mark a function, method or constructor as an old spelling of something else.

    Its first call in a process gives a `DeprecationWarning`. Where warnings are errors, every call
    raises.

    Args:
        replacement: What to write instead, for the sentence "use ... instead".
    """

    def mark(spelling: Callable[_P, _R]) -> Callable[_P, _R]:
        key = f"{spelling.__module__}.{spelling.__qualname__}"
        name = key.removesuffix(".__init__").rpartition(".")[2]
        message = f"{name} is deprecated; use {replacement} instead"

        @wraps(spelling)
        def forward(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if key not in warned:
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                warned.add(key)
            return spelling(*args, **kwargs)

        vars(forward)["__deprecated__"] = message  # as of typing.deprecated
        return forward

    return mark


class ReduceOp(Enum):
    """How values of several replicas become one.

    `SUM` adds them; `MEAN` divides the sum by their number. Wherever a `ReduceOp` is expected its
    name in any case does as well.

    Spec: ENU-1, ENU-2.
    """

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def from_variable_aggregation(aggregation: VariableAggregation) -> ReduceOp:
        """Return the reduction that `aggregation` names.

        Raises:
            InvalidArgumentError: `aggregation` is neither SUM nor MEAN.
        """
        if aggregation is VariableAggregation.SUM:
            return ReduceOp.SUM
        if aggregation is VariableAggregation.MEAN:
            return ReduceOp.MEAN
        raise InvalidArgumentError(
            f"Could not convert from {aggregation!r} to a ReduceOp; only "
            "VariableAggregation.SUM and VariableAggregation.MEAN name a reduction"
        )


class VariableAggregation(Enum):
    """How assignments that replicas make to one variable are combined.

    Spec: ENU-3, VWR-5 to VWR-11.
    """

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3
    ONLY_FIRST_TOWER = 3  # as it was called in TensorFlow 1.12


class VariableSynchronization(Enum):
    """When the copies of a variable are brought together.

    Spec: ENU-4.
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class CommunicationImplementation(Enum):
    """Which library carries collective communication.

    Spec: ENU-7.
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


def destined_reduce_op_from(value: object) -> ReduceOp:
    """Return the `ReduceOp` that `value` is or names, be it by an aggregation.

    Raises:
        InvalidArgumentError: `value` is no reduction.
    """
    if isinstance(value, VariableAggregation):
        return ReduceOp.from_variable_aggregation(value)
    return reduce_op_from(value)


def reduce_op_from(value: object) -> ReduceOp:
    """Return the `ReduceOp` that `value` is or names.

    Raises:
        InvalidArgumentError: `value` is no reduction. Spec: RED-2, RED-3.
    """
    if isinstance(value, ReduceOp):
        return value
    if isinstance(value, str) and value.upper() in ReduceOp.__members__:
        return ReduceOp[value.upper()]
    raise InvalidArgumentError(
        f'{value!r} is not a valid ReduceOp; pass ReduceOp.SUM or ReduceOp.MEAN, or "sum" or "mean"'
    )


def warn_of_no_effect(setting: str, reason: str) -> None:
    """Say, once in a process, that a setting which was set does nothing.

    Args:
        setting: Its name.
        reason: Why, and what to do instead if anything; ends the sentence.
    """
    if setting in warned:
        return
    warned.add(setting)
    warnings.warn(f"{setting} has no effect: {reason}", stacklevel=3)


class RunOptions(NamedTuple):
    """Options of `Strategy.run`.

    Attributes:
        experimental_enable_dynamic_batch_size: Has no effect; shapes are always dynamic.
            `Strategy.run` warns once if it is set, as of the next two.
        experimental_bucketizing_dynamic_shape: Has no effect; nothing is padded.
        experimental_xla_options: Has no effect; there is no XLA.
        run_concurrently: Let replicas overlap instead of running one at a time in replica order;
            worthwhile where each has a GPU.

    Spec: ENU-10, RUN-1.
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None
    run_concurrently: bool = False

    def warn_of_no_effect(self) -> None:
        """Say, once of each, which of the fields that are set do nothing."""
        for name, reason in _WITHOUT_EFFECT.items():
            if getattr(self, name) != self._field_defaults[name]:
                warn_of_no_effect(f"RunOptions.{name}", reason)


_WITHOUT_EFFECT = {
    "experimental_enable_dynamic_batch_size": "shapes are always dynamic in PyTorch",
    "experimental_bucketizing_dynamic_shape": "no input is padded",
    "experimental_xla_options": "there is no XLA; torch.compile takes its own options",
}


@dataclass(frozen=True)
class CommunicationOptions:
    """Hints for operations that communicate between replicas.

    Attributes:
        bytes_per_pack: Pack tensors into messages of about so many bytes; 0 lets the implementation
            choose.
        timeout_seconds: Give up after so many seconds; None waits for ever.
        implementation: A `CommunicationImplementation`, or its name in any case.

    Raises:
        InvalidArgumentError: A field has no meaning. Spec: ENU-8.
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO

    def __post_init__(self) -> None:
        if self.bytes_per_pack < 0:
            raise InvalidArgumentError(f"bytes_per_pack must be >=0, not {self.bytes_per_pack}")
        value, names = self.implementation, CommunicationImplementation.__members__
        if isinstance(value, str) and value.upper() in names:
            value = CommunicationImplementation[value.upper()]
        if not isinstance(value, CommunicationImplementation):
            raise InvalidArgumentError(
                f"implementation must be one of {', '.join(names)}, not {value!r}"
            )
        object.__setattr__(self, "implementation", value)

    def merge(self, other: CommunicationOptions | None) -> CommunicationOptions:
        """Return these options with the fields that `other` sets."""
        default = CommunicationOptions()
        given = {} if other is None else vars(other)
        changes = {k: v for k, v in given.items() if v != getattr(default, k)}
        return replace(self, **changes)


@dataclass(frozen=True)
class InputContext:
    """What a dataset function may know about the pipeline it makes.

    Attributes:
        num_input_pipelines: How many pipelines there are.
        input_pipeline_id: Which of them this one is.
        num_replicas_in_sync: How many replicas share a global batch.

    Spec: ENU-12.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return the rows of a global batch that each replica gets.

        Raises:
            InvalidArgumentError: The batch cannot be split evenly. Spec: ENU-13.
        """
        size, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest:
            raise InvalidArgumentError(
                f"The global batch size {global_batch_size} is not divisible by the "
                f"{self.num_replicas_in_sync} replicas in sync; choose a multiple"
            )
        return size

    def __str__(self) -> str:
        return (
            "tf.distribute.InputContext(input pipeline id "
            f"{self.input_pipeline_id}, total: {self.num_input_pipelines})"
        )


@dataclass(frozen=True)
class ValueContext:
    """What a value function may know about the replica it makes a value for.

    Attributes:
        replica_id_in_sync_group: The replica.
        num_replicas_in_sync: How many replicas there are.

    Spec: ENU-14.
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1

    def __str__(self) -> str:
        return (
            "tf.distribute.ValueContext(replica id "
            f"{self.replica_id_in_sync_group},  total replicas in sync: "
            f"{self.num_replicas_in_sync})"
        )
