"""What workers contribute to a synchronous step, and its sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.gradient_limits import GradientLimits
from stratagem_proto.v1.parameter_server_pb2 import (
    REDUCTION_MEAN,
    Contribution,
    Reduction,
)
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.budget import Reservation
from stratagem_psserver.gradients import Gradient


@dataclass
class Part:
    """One worker's contribution to one step.

    Attributes:
        session_id: The session that staged it.
        task: The worker, for messages.
        contribution: Which step and how to add it.
        program: What the step runs on the sum.
        gradients: Sums over the worker's replicas by variable; owned by the part.
        reservation: The bytes that they occupy.
        limits: What is done to the reduced gradients.
        nonfinite_variable: Why the step is dropped or fails; "" if it is not.
        committed: Whether it counts.
        orphaned: Whether its session has ended since.
    """

    session_id: bytes
    task: str
    contribution: Contribution
    program: OptimizerProgram
    gradients: Mapping[str, Gradient]
    reservation: Reservation
    limits: GradientLimits = field(default_factory=GradientLimits)
    nonfinite_variable: str = ""
    committed: bool = False
    orphaned: bool = False


def total(parts: Sequence[Part]) -> list[Gradient]:
    """The reduced gradients of a step; consumes the parts' tensors.

    Args:
        parts: In worker order. The sum starts from the first part that has a
            gradient of the variable, so that it has the same bytes in whatever order
            the parts arrived.
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


def check_agreement(part: Part, others: Sequence[Part]) -> None:
    """Checks that a worker means the same step as others, who agree already.

    Raises:
        InvalidArgumentError: Naming the worker, another one and what differs.
    """
    for other in others[:1]:
        _compare(part, other, _terms(part), _terms(other))
    for name, gradient in part.gradients.items():
        other = next((each for each in others if name in each.gradients), part)
        theirs = _gradient_terms(other.gradients[name])
        _compare(part, other, _gradient_terms(gradient), theirs)


def agree(part: Part, other: Part) -> bool:
    """Whether two parts mean the same step."""
    return _terms(part) == _terms(other)


def _compare(
    part: Part, other: Part, mine: Mapping[str, str], theirs: Mapping[str, str]
) -> None:
    if mine == theirs:
        return
    terms = mine.keys() | theirs.keys()
    term = min(term for term in terms if mine.get(term) != theirs.get(term))
    mark = part.contribution.step
    raise InvalidArgumentError(
        f"{part.task} and {other.task} differ in the {term} of step {mark.step} of "
        f"{mark.group!r}: {mine.get(term, 'none')} against "
        f"{theirs.get(term, 'none')}; run the same program on all workers"
    )


def _terms(part: Part) -> dict[str, str]:
    """All in which the parts of a step must agree, by how messages name it."""
    contribution, program = part.contribution, part.program
    terms = {
        "number of workers": str(contribution.num_workers),
        "limits of gradients": str(part.limits),
        "replicas to aggregate": str(contribution.replicas_to_aggregate),
        "reduction": Reduction.Name(contribution.reduction),
        "optimizer": f"{program.class_name} {program.name!r}",
        "number of param groups": str(len(program.groups)),
    }
    for index, group in enumerate(program.groups):
        for key, value in group.values.items():
            kind = value.WhichOneof("kind")
            shown = str(getattr(value, kind)).strip() if kind else "None"
            terms[f"hyperparameter {key!r} of param group {index}"] = shown
    return terms


def _gradient_terms(gradient: Gradient) -> dict[str, str]:
    # The variable may have been deleted and made anew between two contributions.
    shape = gradient.value.shape if gradient.rows is None else gradient.value.shape[1:]
    return {
        f"dtype of the gradient of {gradient.variable!r}": str(gradient.value.dtype),
        f"shape of the gradient of {gradient.variable!r}": str(list(shape)),
        f"param group of {gradient.variable!r}": str(gradient.group),
        f"kind of gradient of {gradient.variable!r}": (
            "dense" if gradient.rows is None else "row-sparse"
        ),
    }
