"""The contributions of workers to a synchronous step, and their sum within its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import torch

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.programs.gradient_limits import GradientLimits, sum_of_squares
from stratagem_proto.programs.update_programs import decode_limits
from stratagem_proto.protocol import check_name
from stratagem_proto.v1 import closed_step_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.parameter_server_pb2 import Contribution
from stratagem_proto.v1.update_program_pb2 import REDUCTION_MEAN, OptimizerProgram, Reduction
from stratagem_psserver.limits import Reservation
from stratagem_psserver.optimization.gradients import Gradient, RowGradient


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


# No sensible program has as many; without a limit they would fill the memory.
MAX_WORKERS = 10_000

_NORMS = {False: "of one server", True: "of all servers"}


def check_numbers(part: Part) -> None:
    """Raise InvalidArgumentError if the numbers of a contribution contradict each other."""
    contribution = part.contribution
    check_name(contribution.step.group, "group")
    if not contribution.step.step:
        raise InvalidArgumentError("steps of a synchronous group are numbered from 1")
    if contribution.worker >= contribution.num_workers:
        raise InvalidArgumentError(
            f"{part.task} contributes as worker {contribution.worker} of "
            f"{contribution.num_workers}; workers are numbered from 0"
        )
    if contribution.replicas_to_aggregate > contribution.num_workers:
        raise InvalidArgumentError(
            f"{part.task} contributes to a step of {contribution.num_workers} workers "
            f"that {contribution.replicas_to_aggregate} contributions close; a worker "
            "contributes once"
        )
    if contribution.num_workers > MAX_WORKERS:
        raise InvalidArgumentError(
            f"{part.task} contributes to a step of {contribution.num_workers} workers; "
            f"a step has at most {MAX_WORKERS}"
        )
    if not contribution.reduction:
        raise InvalidArgumentError(
            f"the contribution of {part.task} has no reduction; say SUM or MEAN"
        )


def check_replaceable(previous: Part, part: Part) -> None:
    """Check that a contribution may replace another one of its worker."""
    if previous.orphaned:
        return
    if previous.session_id != part.session_id:
        raise FailedPreconditionError(
            f"{part.task} and {previous.task} both contribute as worker "
            f"{part.contribution.worker}; give each worker a task index of its own. If "
            "one of them has crashed, repeat the step once its lease has ended"
        )
    if previous.committed:
        raise FailedPreconditionError(
            f"{part.task} has committed its contribution to step "
            f"{part.contribution.step.step} already; it cannot be replaced"
        )


def check_agreement(part: Part, others: Sequence[Part]) -> None:
    """Check that a worker's contribution has the same terms as the others, which agree already."""
    for other in others[:1]:
        _compare(part, other, _terms(part), _terms(other))
    for name, gradient in part.gradients.items():
        other = next((each for each in others if name in each.gradients), part)
        theirs = _gradient_terms(other.gradients[name])
        _compare(part, other, _gradient_terms(gradient), theirs)


def agree(part: Part, other: Part) -> bool:
    return _terms(part) == _terms(other)


def _compare(part: Part, other: Part, mine: Mapping[str, str], theirs: Mapping[str, str]) -> None:
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
    """Return the terms in which all contributions to a step must agree, by name for messages."""
    contribution, program = part.contribution, part.program
    terms = {
        "number of workers": str(contribution.num_workers),
        "limits of gradients": str(part.limits),
        "replicas to aggregate": str(contribution.replicas_to_aggregate),
        "norm that is bounded": _NORMS[contribution.global_norm],
        "reduction": Reduction.Name(contribution.reduction),
        "optimizer": f"{program.class_name} {program.name!r}",
        "number of param groups": str(len(program.groups)),
    }
    for index, group in enumerate(program.groups):
        for key, value in group.values.items():
            kind = value.WhichOneof("kind")
            shown = str(getattr(value, kind)).strip() if kind else "None"
            terms[f"hyperparameter {key!r} of param group {index}"] = shown
    for index, rule in enumerate(program.rules):
        traced = sha256(rule.SerializeToString(deterministic=True)).hexdigest()
        terms[f"traced rule of param group {index}"] = traced[:16]
    return terms


def _gradient_terms(gradient: Gradient) -> dict[str, str]:
    # The variable may have been deleted and created again between two contributions.
    shape = gradient.value.shape if gradient.rows is None else gradient.value.shape[1:]
    return {
        f"dtype of the gradient of {gradient.variable!r}": str(gradient.value.dtype),
        f"shape of the gradient of {gradient.variable!r}": str(list(shape)),
        f"param group of {gradient.variable!r}": str(gradient.group),
        f"kind of gradient of {gradient.variable!r}": (
            "dense" if gradient.rows is None else "row-sparse"
        ),
    }


@dataclass
class ClosedStep:
    """The sum of the contributions to a step.

    Attributes:
        parts: The contributions, in worker order; their tensors have been consumed.
        gradients: The reduced gradients, within all limits except that of the norm.
        share: This server's share of the step, for the workers that compute the norm.
        orphaned: Whether a session of a contributor has ended, which might have finished the step.
    """

    parts: Sequence[Part]
    gradients: Sequence[Gradient]
    share: closed_step_pb2.ClosedStep
    orphaned: bool = False

    @property
    def variables(self) -> list[str]:
        return [gradient.variable for gradient in self.gradients]


@dataclass
class ClosedSteps:
    """The closed steps of one group that wait until the norm of all servers' gradients is known.

    Each server has some of a step's gradients, and so a share of the sum of their squares. A worker
    asks all servers for their shares and sends the norm to each, which then applies the step.
    Several workers may do so; they send the same norm, because the shares do not change. A step is
    finished on all servers before a worker finishes the next one, so each server keeps the share of
    the step that it finished last, for workers that finish it on other servers.

    Attributes:
        last: The share of the step that was finished last, and the norm that it was finished with.
    """

    last: tuple[closed_step_pb2.ClosedStep, closed_step_pb2.GlobalNorm] = field(
        default_factory=lambda: (closed_step_pb2.ClosedStep(), closed_step_pb2.GlobalNorm())
    )
    _waiting: dict[int, ClosedStep] = field(default_factory=dict)

    def add(self, closed: ClosedStep) -> None:
        closed.orphaned = any(part.orphaned for part in closed.parts)
        self._waiting[closed.share.step] = closed

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def find(self, step: int) -> ClosedStep | None:
        return self._waiting.get(step)

    def shares(self, up_to: int) -> list[closed_step_pb2.ClosedStep]:
        """Return this server's shares of the last finished step and of those that wait."""
        waiting = [self._waiting[step].share for step in sorted(self._waiting)]
        last = [self.last[0]] if self.last[0].step else []
        return [share for share in (*last, *waiting) if share.step <= up_to]

    def take(self, step: int, norm: closed_step_pb2.GlobalNorm) -> ClosedStep | None:
        """Take out a step to be applied; return None if it was taken before."""
        last, known = self.last
        # Two NaNs are equal as bytes, but not as numbers.
        if step == last.step and norm.SerializeToString() != known.SerializeToString():
            raise InvalidArgumentError(
                f"step {step} was finished with the norm {known.value}, not "
                f"{norm.value}; the norm is that of all servers' gradients"
            )
        if step <= last.step:
            return None
        following = min(self._waiting, default=0)
        if step not in self._waiting or step > following:
            why = f"step {following} is the next" if following else "no step waits for that"
            raise FailedPreconditionError(
                f"step {step} cannot be finished: {why}; finish steps in their order, each once it "
                "is closed on all servers"
            )
        closed = self._waiting.pop(step)
        share = closed_step_pb2.ClosedStep()
        share.CopyFrom(closed.share)
        share.finished = True
        self.last = share, norm
        return closed

    def session_ended(self, session_id: bytes) -> None:
        """Note that a session will finish no step."""
        for closed in self._waiting.values():
            ended = any(part.session_id == session_id for part in closed.parts)
            closed.orphaned = closed.orphaned or ended

    def is_orphaned(self, step: int) -> bool:
        """Return whether a step up to this one is orphaned, so that it may never be finished."""
        waiting = self._waiting.items()
        return any(one.orphaned for number, one in waiting if number <= step)

    def awaits(self, step: int) -> bool:
        """Return whether a step up to this one waits to be finished."""
        return min(self._waiting, default=step + 1) <= step


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
    """Return the gradients of a closed step within its limits; None if it is dropped."""
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
