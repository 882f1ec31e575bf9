"""Values in the program and on its hosts, and the part of them that each core has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import ref

import torch
from torch.nn import Parameter

from stratagem._core.distributed_values import DistributedValues, regroup
from stratagem._core.distributed_variables import SyncOnReadVariable
from stratagem._core.nests import map_leaves
from stratagem._core.variables import Variable
from stratagem._hosting.hosted_parameter import hosted_parameter
from stratagem._strategies.multi_step import MultiStepContext
from stratagem._strategies.strategy import Strategy
from stratagem._tpu.answers import Parts, malformed

Valued = Variable | Parameter
"""A variable, or a parameter of a module that follows one."""

_ATOMS = frozenset((bool, int, float, str, bytes))


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
    # All hosts are told the same, so that none has to check what others were.
    with torch.no_grad():
        for copy in variable.values:
            copy.value().copy_(value)


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


@dataclass(frozen=True)
class LoopOutputs:
    """The outputs of the last step on one host, by name.

    Tensors are `reduced` if they are the same on all cores, else there are those of each core.
    Other outputs are lists or tuples if there is one for each core.
    """

    reduced: Mapping[str, Any]
    of_cores: Mapping[str, Sequence[Any]]
    others: Mapping[str, Any]
    others_of_cores: Mapping[str, Sequence[Any]]

    @classmethod
    def of(cls, strategy: Strategy, context: MultiStepContext) -> LoopOutputs:
        """Return the outputs of a loop that has run."""
        last, others = context.last_step_outputs, context.non_tensor_outputs
        local = strategy.experimental_local_results
        return cls(
            {name: last[name] for name in last if context._is_reduced(name)},
            {name: local(last[name]) for name in last if not context._is_reduced(name)},
            {name: others[name] for name in others if not context._is_listed(name)},
            {name: others[name] for name in others if context._is_listed(name)},
        )

    def parts(self) -> Parts:
        """Return what they are made of; see `told`."""
        return self.reduced, self.of_cores, self.others, self.others_of_cores

    @classmethod
    def told(cls, parts: Any, sender: str) -> LoopOutputs:
        """Return outputs that `parts` has told.

        Raises:
            MalformedStreamError: They are none.
        """
        if type(parts) is not tuple or [*map(type, parts)] != [dict] * 4:
            raise malformed(sender, "something else than outputs of a loop")
        listed = [*parts[1].values(), *parts[3].values()]
        if not all(isinstance(each, list | tuple) for each in listed):
            raise malformed(sender, "outputs that are not those of each core")
        return cls(*parts)

    def has_same_names(self, other: LoopOutputs) -> bool:
        """Return whether another host has outputs of the same names and kinds."""
        return all(
            one.keys() == another.keys()
            for one, another in zip(self.parts(), other.parts(), strict=True)
        )


def context_of(hosts: Sequence[LoopOutputs]) -> MultiStepContext:
    """Return the context of a loop that has run on several hosts, in their order."""
    context, first = MultiStepContext(), hosts[0]
    for name, value in first.reduced.items():
        context._set_output(name, value, reduced=True)
    for name in first.of_cores:
        parts = chain.from_iterable(host.of_cores[name] for host in hosts)
        context._set_output(name, of_all_cores([*parts]), reduced=False)
    for name, value in first.others.items():
        context._set_other(name, value, listed=False)
    for name, value in first.others_of_cores.items():
        everywhere = chain.from_iterable(host.others_of_cores[name] for host in hosts)
        kind = list if isinstance(value, list) else tuple
        context._set_other(name, kind(everywhere), listed=True)
    return context


def of_all_cores(results: Sequence[Any]) -> Any:
    """Merge one nest of each core, as `run` does.

    Numbers and strings that are equal on all cores stay what they are.
    """
    if len(results) == 1:
        return results[0]
    known: dict[tuple[type, Any], Any] = {}

    def one_object(leaf: Any) -> Any:
        kind = type(leaf)
        return known.setdefault((kind, leaf), leaf) if kind in _ATOMS else leaf

    return regroup([map_leaves(one_object, result) for result in results])


def share_of(nest: Any, cores: range) -> Any:
    """Return a nest whose distributed values have the components of some cores only."""

    def of_cores(leaf: Any) -> Any:
        if not isinstance(leaf, DistributedValues):
            return leaf
        mine = [leaf.values[core] for core in cores]
        return mine[0] if len(mine) == 1 else type(leaf)(mine)

    return map_leaves(of_cores, nest)
