"""Applying the limits of gradients that came with a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.gradient_limits import GradientLimits, sum_of_squares
from stratagem_proto.programs.update_programs import decode_limits
from stratagem_proto.v1 import closed_step_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.optimization.gradients import Gradient, RowGradient
from stratagem_psserver.synchronous.closed_steps import ClosedStep
from stratagem_psserver.synchronous.contributions import Part, total

_NONE = GradientLimits()


def limits_of(header: pb.UpdateHeader) -> GradientLimits:
    """Return the limits of a request.

    Raises:
        InvalidArgumentError: They are not valid, or the request names a gradient that is not finite
            without being a contribution whose limits say what to do then.
    """
    limits = decode_limits(header.limits) if header.HasField("limits") else _NONE
    variable = header.nonfinite_variable
    decided = limits.on_nonfinite in ("reject", "raise")
    if variable and not (decided and header.HasField("contribution")):
        raise InvalidArgumentError(
            f"the gradient of {variable!r} is said to be not finite; only "
            "contributions say so, with limits that say REJECT or RAISE",
            variable=variable,
        )
    return limits


def limited(gradients: Sequence[Gradient], limits: GradientLimits) -> list[Gradient] | None:
    """Return the gradients within their limits; None if the step is dropped.

    Raises:
        NonFiniteGradientError: A gradient is not finite, and the limits say that this is an error.
    """
    if not limits:
        return list(gradients)
    distinct = {each.variable: _with_distinct_rows(each) for each in gradients}
    within = limits.apply({name: each.value for name, each in distinct.items()})
    if within is None:
        return None
    return _with_values(distinct, within)


def limited_total(parts: Sequence[Part]) -> list[Gradient] | None:
    """Return the reduced gradients of a step within its limits; None if it is dropped.

    The tensors of the contributions are consumed.

    Raises:
        NonFiniteGradientError: As for `limited`.
    """
    limits = parts[0].limits
    if spoilt := _spoilt(parts):
        limits.drop(spoilt.nonfinite_variable, spoilt.task)
        return None
    return limited(total(parts), limits)


def closed_total(parts: Sequence[Part]) -> ClosedStep:
    """Return the reduced gradients of a step within all limits except that of the norm.

    The tensors of the contributions are consumed.
    """
    limits, share = (
        parts[0].limits,
        closed_step_pb2.ClosedStep(step=parts[0].contribution.step.step),
    )
    if spoilt := _spoilt(parts):
        share.nonfinite_variable = spoilt.nonfinite_variable
        return ClosedStep(parts, (), share)
    distinct = {each.variable: _with_distinct_rows(each) for each in total(parts)}
    values = {name: each.value for name, each in distinct.items()}
    share.nonfinite_variable = limits.offender(values)
    bounded = limits.bounded(values)
    share.squares = sum_of_squares(bounded.values())
    return ClosedStep(parts, _with_values(distinct, bounded), share)


def finished_total(closed: ClosedStep, norm: closed_step_pb2.GlobalNorm) -> list[Gradient] | None:
    """Return the gradients of a closed step within its limits; None if it is dropped.

    Args:
        closed: The step.
        norm: The norm of all servers' gradients.

    Raises:
        NonFiniteGradientError: As for `limited`.
    """
    limits = closed.parts[0].limits
    if norm.nonfinite_variable:
        spoilt = _spoilt(closed.parts)
        limits.drop(norm.nonfinite_variable, spoilt.task if spoilt else "")
        return None
    gradients = {each.variable: each for each in closed.gradients}
    values = {name: each.value for name, each in gradients.items()}
    whole = torch.tensor(norm.value, dtype=torch.float64)
    return _with_values(gradients, limits.scaled(values, whole))


def _spoilt(parts: Sequence[Part]) -> Part | None:
    """Return the first contribution whose worker has gradients that are not finite."""
    return next((part for part in parts if part.nonfinite_variable), None)


def _with_values(
    gradients: Mapping[str, Gradient], values: Mapping[str, torch.Tensor]
) -> list[Gradient]:
    return [replace(gradients[name], value=value) for name, value in values.items()]


def _with_distinct_rows(gradient: Gradient) -> Gradient:
    if gradient.rows is None:
        return gradient
    added = RowGradient.added(gradient.rows, gradient.value)
    return replace(gradient, rows=added.rows, value=added.values)
