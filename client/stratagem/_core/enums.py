"""The enumerations of the Strategy API."""

from __future__ import annotations

from enum import Enum

from stratagem_proto.errors import InvalidArgumentError


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
