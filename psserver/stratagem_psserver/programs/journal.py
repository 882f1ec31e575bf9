"""A journal of what a graph program overwrites, kept until the program has succeeded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stratagem_proto.programs.operations import Operation
from stratagem_psserver.programs.graphs import CompiledGraph, Reference, Step, references


class Journal:
    """Saves what the steps of a run overwrite in variables.

    Call `before` for each step, and `undo` if the run fails. A variable that is written whole is
    saved once; of one that is written by index, only the touched elements are saved.

    Attributes:
        nbytes: The bytes that are saved.
    """

    def __init__(self, graph: CompiledGraph) -> None:
        self.nbytes = 0
        self._graph = graph
        self._changing = {step.writes for step in graph.steps} - {None}
        self._saved_whole: set[int] = set()
        self._restores: list[Callable[[], object]] = []

    def before(self, step: Step, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Save what a step will overwrite."""
        if step.operation is None or step.writes not in self._graph.written:
            return
        names = [argument.name for argument in step.operation.schema.arguments]
        given = dict(zip(names, arguments, strict=False)) | dict(keywords)
        if self._is_safe(step, step.operation, given["self"]):
            return
        if step.operation.indexed and not self._indices_change(step):
            self._save(*_TOUCHED[step.operation.name.split(".")[1]](given))
            return
        target = given["self"]
        self._save(target.clone(), target.copy_)
        if step.arguments and step.arguments[0] == Reference(step.writes):
            self._saved_whole.add(step.writes)

    def undo(self) -> None:
        """Restore all that was overwritten."""
        with torch.no_grad():
            while self._restores:
                self._restores.pop()()

    def _save(self, saved: torch.Tensor, restore: Callable[[torch.Tensor], object]) -> None:
        self.nbytes += saved.numel() * saved.itemsize
        self._restores.append(lambda: restore(saved))

    def _is_safe(self, step: Step, operation: Operation, target: torch.Tensor) -> bool:
        """Return whether variables can be restored after a failure without another copy."""
        if step.writes in self._saved_whole:
            return True
        # Floating-point kernels without an index check their arguments before they write; integer
        # ones may fail at a division by zero after some elements are written.
        whole = target.is_floating_point() and not operation.indexed
        # Outputs are copied after the last step, which may fail, too.
        return whole and step is self._graph.steps[-1] and not self._graph.outputs

    def _indices_change(self, step: Step) -> bool:
        operands = (*step.arguments[1:], *step.keywords.values())
        return any(
            self._graph.values[number].root in self._changing for number in references(operands)
        )


Saved = tuple[torch.Tensor, Callable[[torch.Tensor], object]]


def _touched_rows(given: Mapping[str, Any]) -> Saved:
    target, dim, index = given["self"], given["dim"], given["index"]
    saved = target.index_select(dim, index)
    return saved, lambda rows: target.index_copy_(dim, index, rows)


def _touched_by_scatter(given: Mapping[str, Any]) -> Saved:
    target, dim, index = given["self"], given["dim"], given["index"]
    return target.gather(dim, index), lambda old: target.scatter_(dim, index, old)


def _touched_by_put(given: Mapping[str, Any]) -> Saved:
    target, indices = given["self"], given["indices"]
    saved = torch.ops.aten.index.Tensor(target, indices)
    return saved, lambda old: torch.ops.aten.index_put_.default(target, indices, old)


# By indexed operation: returns what it overwrites, and a function that restores it.
_TOUCHED: Mapping[str, Callable[[Mapping[str, Any]], Saved]] = {
    "index_add_": _touched_rows,
    "index_copy_": _touched_rows,
    "index_put_": _touched_by_put,
    "scatter_": _touched_by_scatter,
    "scatter_add_": _touched_by_scatter,
    "scatter_reduce_": _touched_by_scatter,
}
