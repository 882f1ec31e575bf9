"""Variables and parameters, which have a value in the program and on its hosts."""

from __future__ import annotations

from weakref import ref

import torch
from torch.nn import Parameter

from stratagem._core.distributed_variables.sync_on_read import SyncOnReadVariable
from stratagem._core.variables.assignable import Write
from stratagem._core.variables.variable import Variable
from stratagem._hosting.modules.hosted_parameter import hosted_parameter

Valued = Variable | Parameter
"""A variable, or a parameter of a module that follows one."""


def variable_of(valued: Valued) -> Variable:
    """Return the variable itself, or the one that a parameter follows."""
    if isinstance(valued, Variable):
        return valued
    hosted = hosted_parameter(valued)
    assert hosted is not None
    return hosted.variable


def write(valued: Valued, value: torch.Tensor) -> None:
    """Write all copies in this process, in cross-replica context."""
    variable = variable_of(valued)
    if isinstance(variable, SyncOnReadVariable):
        variable.assign(value, read_value=False)
        return
    hosted = None if isinstance(valued, Variable) else hosted_parameter(valued)
    if hosted is not None:
        hosted.write(value)
        return
    for copy in variable.values:
        copy._write(Write.ASSIGN, value)


class Marks:
    """Tells which tensors were written since they were marked."""

    def __init__(self) -> None:
        # The keys are ids, since the owners of tensors may define equality.
        self._marked: dict[int, tuple[ref[object], tuple[int, int]]] = {}

    def is_new(self, owner: object, tensor: torch.Tensor) -> bool:
        """Return whether `owner`'s tensor was written since, or never marked."""
        known = self._marked.get(id(owner))
        return known is None or known[0]() is not owner or known[1] != _stamp(tensor)

    def mark(self, owner: object, tensor: torch.Tensor) -> None:
        """Note that `owner`'s tensor is known as it is now."""
        self._marked[id(owner)] = ref(owner), _stamp(tensor)


def _stamp(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version
