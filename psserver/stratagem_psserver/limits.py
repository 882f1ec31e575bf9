"""Keeping the gradients of a step within the limits that came with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.gradient_limits import GradientLimits
from stratagem_proto.update_programs import decode_limits
from stratagem_proto.v1.parameter_server_pb2 import UpdateHeader
from stratagem_psserver.contributions import Part, total
from stratagem_psserver.gradients import Gradient, RowGradient


def limits_of(header: UpdateHeader) -> GradientLimits:
    """The limits of a request.

    Raises:
        InvalidArgumentError: They are none, or the request is about a gradient that
            is not finite and does not say what that leads to.
    """
    limits = decode_limits(header.limits)
    variable = header.nonfinite_variable
    decided = limits.on_nonfinite in ("reject", "raise")
    if variable and not (decided and header.HasField("contribution")):
        raise InvalidArgumentError(
            f"the gradient of {variable!r} is said to be not finite; only "
            "contributions say so, with limits that say REJECT or RAISE",
            variable=variable,
        )
    return limits


def limited(
    gradients: Sequence[Gradient], limits: GradientLimits
) -> list[Gradient] | None:
    """The gradients within their limits; None if the step is dropped.

    Raises:
        NonFiniteGradientError: Naming a variable, if the limits want that.
    """
    if not limits:
        return list(gradients)
    distinct = {each.variable: _with_distinct_rows(each) for each in gradients}
    within = limits.apply({name: each.value for name, each in distinct.items()})
    if within is None:
        return None
    return [replace(distinct[name], value=value) for name, value in within.items()]


def limited_total(parts: Sequence[Part]) -> list[Gradient] | None:
    """The reduced gradients of a step within its limits; None if it is dropped.

    Consumes the parts' tensors.

    Raises:
        NonFiniteGradientError: Naming a variable, if the limits want that.
    """
    limits = parts[0].limits
    for part in parts:
        if part.nonfinite_variable:
            limits.drop(part.nonfinite_variable, part.task)
            return None
    return limited(total(parts), limits)


def _with_distinct_rows(gradient: Gradient) -> Gradient:
    if gradient.rows is None:
        return gradient
    rows = RowGradient.of(gradient.rows, gradient.value)
    return replace(gradient, rows=rows.rows, value=rows.as_dense())
