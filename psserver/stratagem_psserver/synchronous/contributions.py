"""The contributions of workers to a synchronous step, and their sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from stratagem_proto.programs.gradient_limits import GradientLimits
from stratagem_proto.v1.parameter_server_pb2 import Contribution
from stratagem_proto.v1.update_program_pb2 import REDUCTION_MEAN, OptimizerProgram
from stratagem_psserver.limits.budget import Reservation
from stratagem_psserver.optimization.gradients import Gradient


@dataclass
class Part:
    """One worker's contribution to one step.

    Attributes:
        session_id: The session that staged it.
        task: The worker's name, for messages.
        contribution: The step, and how contributions are reduced.
        program: The optimizer program that runs on the sum.
        gradients: Sums over the worker's replicas, by variable. This object owns their tensors.
        reservation: The bytes of the budget that they occupy.
        records: The positions in the log of the requests that brought the gradients.
        limits: The limits of the reduced gradients.
        nonfinite_variable: A variable whose gradient is not finite, for which the step is dropped
            or fails; "" if there is none.
        committed: Whether the worker has committed it.
        orphaned: Whether its session has ended.
    """

    session_id: bytes
    task: str
    contribution: Contribution
    program: OptimizerProgram
    gradients: Mapping[str, Gradient]
    reservation: Reservation
    records: Sequence[int] = ()
    limits: GradientLimits = field(default_factory=GradientLimits)
    nonfinite_variable: str = ""
    committed: bool = False
    orphaned: bool = False


def total(parts: Sequence[Part]) -> list[Gradient]:
    """Return the reduced gradients of a step; the tensors of the contributions are consumed.

    Args:
        parts: The contributions in worker order, so that the sums have the same bytes in whatever
            order the contributions arrived.
    """
    sums: dict[str, Gradient] = {}
    for part in parts:
        for name, gradient in part.gradients.items():
            if name in sums:
                _add(sums[name], gradient)
            else:
                sums[name] = gradient
    replicas = sum(part.contribution.replicas for part in parts)
    if parts[0].contribution.reduction == REDUCTION_MEAN and replicas > 1:
        for gradient in sums.values():
            gradient.value.div_(replicas)
    return list(sums.values())


def _add(target: Gradient, other: Gradient) -> None:
    if target.rows is None or other.rows is None:
        target.value.add_(other.value)
        return
    target.rows = torch.cat((target.rows, other.rows))
    target.value = torch.cat((target.value, other.value))
