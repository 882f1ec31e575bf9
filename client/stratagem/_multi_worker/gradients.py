"""One optimizer's step over the replicas of all workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stratagem._core.enums import ReduceOp
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.variables.variable import Variable
from stratagem._gradients.step import GroupStep, OptimizerStep, VariableGradients
from stratagem._multi_worker.group import WorkerGroup
from stratagem._multi_worker.reduction import AcrossWorkers, Reduced
from stratagem_proto.errors import InvalidArgumentError


class StepsTogether:
    """Makes all workers take the same steps.

    If only some workers have a gradient for a variable, for instance because the others had no
    data, these take part with zeros.
    """

    def __init__(self, group: WorkerGroup, across: AcrossWorkers) -> None:
        self.group = group
        self._across = across

    def joined(
        self, step: OptimizerStep, written: str, find: Callable[[str], Variable]
    ) -> OptimizerStep:
        """Return the step of all workers.

        Its variables are those for which any worker has a gradient, and its replicas those of all
        workers that took part.

        Args:
            step: The step as this worker alone would take it.
            written: A digest of what the user has written into parameters; "" if nothing.
            find: Returns a variable by its name.

        Raises:
            InvalidArgumentError: The workers' optimizers, hyperparameters or writes differ.
        """
        same: list[Any] = [step.optimizer, step.class_name, str(step.reduce_op)]
        same.append(f"parameters and states that were written by hand: {written or 'none'}")
        same += [pair for group in step.groups for pair in _hyperparameters(group)]
        own = {"replicas": step.replicas, "groups": list(map(_forms, step.groups))}
        heard = self.group.agree("A step of an optimizer", same, own)
        groups = [
            _with_all(group, [each["groups"][number] for each in heard], find)
            for number, group in enumerate(step.groups)
        ]
        replicas = sum(each["replicas"] for each in heard)
        return step._replace(groups=tuple(groups), replicas=replicas)

    def summed(self, totals: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Add up over workers the totals of each, one for each variable of `joined`."""
        # Sparse totals go apart: workers may have different numbers of rows.
        rows = self._across.summed(
            [IndexedSlices.from_sparse(total) for total in totals if total.is_sparse]
        )
        dense = self.group.sums([total for total in totals if not total.is_sparse])
        rest = iter(rows), iter(dense)
        return [_sparse(next(rest[0])) if total.is_sparse else next(rest[1]) for total in totals]


def mean(step: OptimizerStep, total: torch.Tensor) -> torch.Tensor:
    """Return the sum over replicas, divided by their number if the step wants that."""
    return total / step.replicas if step.reduce_op is ReduceOp.MEAN else total


def _with_all(
    group: GroupStep, by_rank: Sequence[Any], find: Callable[[str], Variable]
) -> GroupStep:
    if all(forms == by_rank[0] for forms in by_rank):
        return group
    own = {update.variable.name: update for update in group.updates}
    updates = [
        own[name] if name in own else _zeros(find(name), sparse)
        for name, sparse in _union(by_rank).items()
    ]
    return GroupStep.of(group.hyperparameters, updates)


def _zeros(variable: Variable, sparse: bool) -> VariableGradients:
    zeros = torch.zeros_like(variable.values[0].value().detach())
    if sparse:
        nowhere = torch.empty(0, dtype=torch.int64, device=zeros.device)
        zeros = _sparse(IndexedSlices(zeros[:0], nowhere, zeros.shape))
    return VariableGradients(variable, (zeros,))


def _hyperparameters(group: GroupStep) -> list[str]:
    pairs = group.hyperparameters.items()
    return [f"{key}={_shown(value)}" for key, value in pairs]


def _shown(value: object) -> str:
    return repr(value.tolist() if isinstance(value, torch.Tensor) else value)


def _forms(group: GroupStep) -> list[list[Any]]:
    """Return name and sparsity of each variable that has a gradient."""
    return [[update.variable.name, update.gradients[0].is_sparse] for update in group.updates]


def _union(by_rank: Sequence[Sequence[Sequence[Any]]]) -> Mapping[str, bool]:
    found: dict[str, bool] = {}
    for forms in by_rank:
        for name, sparse in forms:
            if found.setdefault(name, sparse) is not sparse:
                raise InvalidArgumentError(
                    f"The gradient of {name!r} is sparse on some workers and dense on "
                    "others; build the same modules on all workers",
                    variable=name,
                )
    return found


def _sparse(rows: Reduced) -> torch.Tensor:
    assert isinstance(rows, IndexedSlices)
    assert rows.dense_shape is not None
    tensor = torch.sparse_coo_tensor(
        rows.indices.unsqueeze(0), rows.values, rows.dense_shape, check_invariants=False
    )
    return tensor.coalesce()
