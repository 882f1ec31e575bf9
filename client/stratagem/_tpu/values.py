"""Values and answers that travel between the program and its hosts."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias
from weakref import ref

import torch
from torch.nn import Parameter

from stratagem._core.distributed_values import DistributedValues, regroup
from stratagem._core.distributed_variables import SyncOnReadVariable
from stratagem._core.nests import map_leaves
from stratagem._core.variables import Variable
from stratagem._hosting.hosted_parameter import hosted_parameter
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem._shipping.pickling import words_of
from stratagem._strategies.multi_step import MultiStepContext
from stratagem._strategies.strategy import Strategy
from stratagem._worker_client.wire import RemoteTraceback
from stratagem_proto.errors import (
    AbortedError,
    DeadlineExceededError,
    MalformedStreamError,
    UnavailableError,
    WorkerFunctionError,
)
from stratagem_proto.v1 import worker_pb2 as pb

OUT_OF_STEP = (AbortedError, DeadlineExceededError, UnavailableError)
"""Errors after which hosts do not know what the others do."""

Parts: TypeAlias = tuple[Any, ...]
"""What an object is made of that travels without pickle."""


def malformed(sender: str, why: str) -> MalformedStreamError:
    """Return that a host has told what none could tell."""
    return MalformedStreamError(
        f"{sender} returned what no host of this program could have returned: {why}. Another "
        "program may have its address, or somebody may have taken it over: stop it and look at its "
        "host",
        task=sender,
    )


def failure_of(error: BaseException, outcomes: OutcomeForm) -> pb.Failure:
    """Return an exception as a host tells it."""
    failure = pb.Failure(
        kind=pb.FAILURE_KIND_FUNCTION,
        class_name=type(error).__qualname__,
        message=words_of(error),
        traceback="".join(traceback.format_exception(error)),
    )
    outcomes.add_exception(error, failure)
    return failure


@dataclass(frozen=True)
class HostAnswer:
    """How a call has ended on one host.

    Attributes:
        result: What the work returned, in the form of outcomes; empty if it raised.
        failure: What it raised; None if it returned.
        in_step: Whether the host can go on with the others.
        values: The values that have changed, by position in the call's `state`; of the first host.
        buffers: The buffers of modules, by position in the call's `modules` and by key; likewise.
    """

    result: bytes
    failure: pb.Failure | None
    in_step: bool
    values: Mapping[int, torch.Tensor]
    buffers: Mapping[tuple[int, str], torch.Tensor]

    def encode(self) -> Parts:
        """Return what `decode` makes the answer of."""
        failure = b"" if self.failure is None else self.failure.SerializeToString()
        buffers = [(*place, buffer) for place, buffer in self.buffers.items()]
        return self.result, failure, self.in_step, dict(self.values), buffers

    @classmethod
    def decode(cls, parts: Any, sender: str) -> HostAnswer:
        """Return the answer that `encode` wrote.

        Raises:
            MalformedStreamError: It is no such answer.
        """
        kinds = bytes, bytes, bool, dict, list
        if not _are(parts, kinds):
            raise malformed(sender, "an answer of other parts")
        result, failed, in_step, values, buffers = parts
        if not all(_are(pair, (int, torch.Tensor)) for pair in values.items()):
            raise malformed(sender, "values that are no tensors of variables")
        if not all(_are(each, (int, str, torch.Tensor)) for each in buffers):
            raise malformed(sender, "buffers that are no tensors of modules")
        try:
            failure = pb.Failure.FromString(failed) if failed else None
        except Exception as error:
            raise malformed(sender, "an error that cannot be read") from error
        named = {(position, key): buffer for position, key, buffer in buffers}
        return cls(result, failure, in_step, values, named)


def _are(parts: Any, kinds: Sequence[type]) -> bool:
    """Return whether there are as many parts, each of its kind."""
    if type(parts) is not tuple or len(parts) != len(kinds):
        return False
    return all(
        # True and False are numbers to Python.
        isinstance(part, kind) and (type(part) is bool) is (kind is bool)
        for part, kind in zip(parts, kinds, strict=True)
    )


def texts(value: Any, sender: str) -> list[str]:
    """Return the names that a host has told; raise `MalformedStreamError` if they are none."""
    if not isinstance(value, list | tuple) or not all(type(each) is str for each in value):
        raise malformed(sender, "something else than names")
    return list(value)


def slots_of(value: Any, count: int, sender: str) -> list[Mapping[str, torch.Tensor]]:
    """Return the state of an optimizer for so many variables, as a host has told it.

    Raises:
        MalformedStreamError: It is something else.
    """
    if type(value) is not list or len(value) != count or not all(map(_is_state, value)):
        raise malformed(sender, "something else than the state of an optimizer")
    return value


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and all(
        type(key) is str and isinstance(each, torch.Tensor) for key, each in value.items()
    )


def raised_by(
    answers: Sequence[HostAnswer], tasks: Sequence[int], outcomes: OutcomeForm
) -> BaseException | None:
    """Return the error of a call, caused by its traceback; None if all went well.

    An error of a host itself comes before one that tells of another host.
    """
    failed = [
        (task, outcomes.exception_of(answer.failure, f"host {task}"), answer.failure.traceback)
        for answer, task in zip(answers, tasks, strict=True)
        if answer.failure is not None
    ]
    if not failed:
        whole = all(answer.in_step for answer in answers)
        return None if whole else UnavailableError("a host has left the others")
    of_hosts_themselves = (
        one
        for one in failed
        if not isinstance(one[1], OUT_OF_STEP) or isinstance(one[1], WorkerFunctionError)
    )
    task, error, trace = next(of_hosts_themselves, failed[0])
    error.__cause__ = RemoteTraceback(f"host {task}", "a call", trace)
    return error


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
    def collect(cls, strategy: Strategy, context: MultiStepContext) -> LoopOutputs:
        last, others = context.last_step_outputs, context.non_tensor_outputs
        local = strategy.experimental_local_results
        return cls(
            {name: last[name] for name in last if context._is_reduced(name)},
            {name: local(last[name]) for name in last if not context._is_reduced(name)},
            {name: others[name] for name in others if not context._is_listed(name)},
            {name: others[name] for name in others if context._is_listed(name)},
        )

    def encode(self) -> Parts:
        """Return what `decode` makes the outputs of."""
        return self.reduced, self.of_cores, self.others, self.others_of_cores

    @classmethod
    def decode(cls, parts: Any, sender: str) -> LoopOutputs:
        """Return the outputs that `encode` wrote.

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
            for one, another in zip(self.encode(), other.encode(), strict=True)
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
