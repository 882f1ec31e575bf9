"""Checks that the contributions to a synchronous step agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.protocol import check_name
from stratagem_proto.v1.update_program_pb2 import Reduction
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.synchronous.contributions import Part

# No sensible program has as many; without a limit they would fill the memory.
MAX_WORKERS = 10_000

_NORMS = {False: "of one server", True: "of all servers"}


def check_numbers(part: Part) -> None:
    """Check that the numbers of a contribution are consistent.

    Raises:
        InvalidArgumentError: They contradict each other.
    """
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
    """Check that a contribution may replace another one of its worker.

    Raises:
        FailedPreconditionError: The other one is from another session, or is committed.
    """
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
    """Check that a worker's contribution has the same terms as the others, which agree already.

    Raises:
        InvalidArgumentError: It differs; the error names both workers and the first difference.
    """
    for other in others[:1]:
        _compare(part, other, _terms(part), _terms(other))
    for name, gradient in part.gradients.items():
        other = next((each for each in others if name in each.gradients), part)
        theirs = _gradient_terms(other.gradients[name])
        _compare(part, other, _gradient_terms(gradient), theirs)


def agree(part: Part, other: Part) -> bool:
    """Return whether two contributions have the same terms."""
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
