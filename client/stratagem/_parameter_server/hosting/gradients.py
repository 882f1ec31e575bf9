"""What each server gets of a step: its program, and the gradients of its variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from stratagem._core.variables import Variable
from stratagem._core.waiting import uninterrupted
from stratagem._gradients import Compressor, GroupStep, OptimizerStep
from stratagem._parameter_server.hosting.push import Update
from stratagem._parameter_server.variables.variable import (
    Copies,
    SplitVariable,
    by_server,
    parts_of,
    remote_of,
    values_of_rows,
)
from stratagem._ps_client.group import Order, ServerGroup
from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.updates import (
    GradientHeaderCache,
    Limits,
    SentGradient,
    step,
)
from stratagem_proto.errors import InternalError
from stratagem_proto.programs.optimizers import Value, rule_named, values_of
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1.parameter_server_pb2 import Contribution, UpdateHeader
from stratagem_proto.v1.update_program_pb2 import BackwardPass, OptimizerProgram, UpdateProgram
from stratagem_proto.wire.encodings import Encoded

if TYPE_CHECKING:
    from stratagem._tracing.optimizer_rules import VariableRule


class GradientRouter:
    """Finds out once on which servers an optimizer's variables are."""

    def __init__(self) -> None:
        self._last: dict[str, Route] = {}

    def keep(self, optimizers: Collection[str]) -> None:
        """Forget the routes of all optimizers but these."""
        self._last = {name: one for name, one in self._last.items() if name in optimizers}

    def route(self, step: OptimizerStep) -> Route:
        """Return the route of a step; that of the last one, if it has the same variables."""
        variables = [group.variables for group in step.groups]
        route = self._last.get(step.optimizer)
        if route is None or not route.fits(variables):
            route = self._last[step.optimizer] = Route(variables)
        return route


class Route:
    """Where the gradients of certain variables go, and what is then to be fresh.

    Attributes:
        copies: Those variables of which there are copies here, by server.
    """

    def __init__(self, variables: Sequence[Sequence[Variable]]) -> None:
        self._variables = variables
        parts = [part for group in variables for one in group for part in parts_of(one)]
        self.copies: Copies = by_server([part for part in parts if part.has_copy])
        # What each server is told, and the places of its gradients in a step; None if a variable is
        # not on exactly one server.
        self._headers: dict[int, tuple[GradientHeaderCache, Sequence[int]]] | None = None
        named: dict[int, list[tuple[str, int]]] = defaultdict(list)
        places: dict[int, list[int]] = defaultdict(list)
        each = [(one, group) for group, ones in enumerate(variables) for one in ones]
        for place, (variable, group) in enumerate(each):
            remote = remote_of(variable)
            if remote is None:
                return
            named[remote.place.server].append((remote.name, group))
            places[remote.place.server].append(place)
        self._headers = {
            server: (GradientHeaderCache(gradients), places[server])
            for server, gradients in named.items()
        }

    def fits(self, variables: Sequence[Sequence[Variable]]) -> bool:
        """Return whether it is for these, group by group."""
        return len(variables) == len(self._variables) and all(
            [
                mine is others or (len(mine) == len(others) and all(map(is_, mine, others)))
                for mine, others in zip(self._variables, variables, strict=True)
            ]
        )

    def updates(
        self,
        program: bytes,
        step: OptimizerStep,
        contribution: Contribution | None = None,
        limits: Limits | None = None,
    ) -> dict[int, Update] | None:
        """Return what each server gets of a step with one gradient for each variable.

        None where that is not so simple; the other arguments are as of `updates.step`.
        """
        if self._headers is None:
            return None
        gradients = [one for group in step.groups for (one,) in group.gradients]
        if any([each.layout is not torch.strided for each in gradients]):
            return None
        updates = {}
        for server, (header, places) in self._headers.items():
            tensors = [gradients[place] for place in places]
            request = header.step(program, tensors, contribution, limits)
            updates[server] = Update(request, header.variables)
        return updates


class ServerBatch:
    """What one server gets in a step.

    Attributes:
        gradients: The gradients of its variables that are yet to be sent.
        backward: The pass of which the server has others; None if it has none.
    """

    def __init__(self, compressor: Compressor) -> None:
        self.gradients: list[SentGradient] = []
        self.backward: BackwardPass | None = None
        self._compressor = compressor
        self._residuals: dict[str, torch.Tensor] = {}

    def add(
        self, variable: str, values: torch.Tensor, group: int, rows: torch.Tensor | None = None
    ) -> None:
        """Take in a gradient, dense or of rows; otherwise as of `SentGradient`."""
        value: torch.Tensor | Encoded = values
        if rows is not None:
            value = self._compressor.rows(values)
        elif self._compressor.compression is not None:
            value, residual = self._compressor.dense(variable, values)
            if residual is not None:
                self._residuals[variable] = residual
        self.gradients.append(SentGradient(variable, value, group, rows))

    @property
    def variables(self) -> set[str]:
        """Names of the variables that it has gradients of."""
        return {gradient.variable for gradient in self.gradients}

    def update(self, program: bytes) -> Update:
        """Return what the server is sent; `program` as of `updates.step`."""
        request = step(program, self.gradients, backward=self.backward)
        arrived = self.arrived if self._residuals else None
        return Update(request, self.variables, arrived)

    def arrived(self) -> None:
        """Take note that the server has the gradients."""
        for variable, residual in self._residuals.items():
            self._compressor.keep(variable, residual)

    @property
    def nbytes(self) -> int:
        """How much is yet to be sent."""
        return sum(gradient.value.nbytes for gradient in self.gradients)

    def begin(self, backward: BackwardPass) -> list[SentGradient]:
        """Return what there is, to be sent before the rest."""
        gradients, self.gradients = self.gradients, []
        self.backward = backward
        return gradients


ServerBatches = defaultdict[int, ServerBatch]
"""What the servers get, by index."""


def no_batches(compressor: Compressor) -> ServerBatches:
    """Return loads to which gradients are yet to be added."""
    return defaultdict(lambda: ServerBatch(compressor))


def add_gradient(
    batches: ServerBatches, variable: Variable, value: torch.Tensor, group: int
) -> None:
    """Add the gradient of a variable, dense or `torch.sparse_coo`, of a param group by number."""
    if isinstance(variable, SplitVariable):
        for part, (values, rows) in zip(variable.parts, variable.gradients(value), strict=True):
            batches[part.place.server].add(part.name, values, group, rows)
        return
    remote = remote_of(variable)
    if remote is None:
        raise InternalError(f"variable {variable.name!r} is on no parameter server")
    values, rows = values_of_rows(value)
    batches[remote.place.server].add(remote.name, values, group, rows)


# Smaller gradients wait for others that go to the same server.
_BUCKET_BYTES = 1 << 20


class OverlappedPush:
    """What has been sent of one optimizer's gradients before its step.

    This is no way to push of its own: servers keep these gradients until the push of the step, so
    that they apply all of it or nothing.

    Attributes:
        variables: Names of the variables whose gradient is taken care of.
    """

    def __init__(self, servers: ServerGroup, optimizer: str, compressor: Compressor) -> None:
        self._servers = servers
        self._compressor = compressor
        # Servers take a client's requests one after the other. What is sent from this thread
        # belongs to no scheduled function: who runs one again, sends it again.
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="early-push")
        self._backward = BackwardPass(optimizer=optimizer)
        self.discard()

    def add(self, variable: Variable, gradient: torch.Tensor, group: int) -> None:
        """Take in a gradient that is final, and send what there is if it is much."""
        self.variables.add(variable.name)
        add_gradient(self._batches, variable, gradient, group)
        for server, batch in self._batches.items():
            if batch.nbytes >= _BUCKET_BYTES:
                request = updates.keep(self._backward, batch.begin(self._backward))
                send = partial(self._servers.call_all, {server: request}, Order.STEP)
                # An interruption may go astray to a thread that is just being started.
                with uninterrupted():
                    self._sent.append(self._sender.submit(send))

    def finish(self) -> ServerBatches:
        """Wait for what was sent, and return what was not."""
        for sent in self._sent:
            sent.result()
        return self._batches

    def discard(self) -> None:
        """Begin anew: what was sent will not be used, or has been."""
        number = self._backward.number + 1
        optimizer = self._backward.optimizer
        self._backward = BackwardPass(optimizer=optimizer, number=number)
        self.variables: set[str] = set()
        self._batches: ServerBatches = no_batches(self._compressor)
        self._sent: list[Future[Any]] = []


_Groups: TypeAlias = Sequence[Mapping[str, object]]
"""The hyperparameters of each param group, as torch has them."""


class _Encoded(NamedTuple):
    """A program that was sent.

    Attributes:
        groups: What it was made of; empty if somebody can change that in place.
        rules: The rule of each group, if it has one.
        text: The hyperparameters, which is exact, and tells 1 from 1.0 and 0.0 from -0.0.
        encoded: The part of an `UpdateHeader` that has the program.
    """

    groups: _Groups
    rules: Sequence[VariableRule | None]
    text: str
    encoded: bytes


class Programs:
    """Encodes the program of a step, anew only if it differs from the last one's."""

    def __init__(self) -> None:
        # By optimizer and class.
        self._last: dict[tuple[str, str], _Encoded] = {}

    def keep(self, optimizers: Collection[str]) -> None:
        """Forget the programs of all optimizers but these."""
        self._last = {name: one for name, one in self._last.items() if name[0] in optimizers}

    def encoded(self, step: OptimizerStep) -> bytes:
        """Return the part of an `UpdateHeader` that has the program of a step."""
        groups = [group.hyperparameters for group in step.groups]
        rules = [group.rule for group in step.groups]
        name = step.optimizer, step.class_name
        last = self._last.get(name)
        if last is None or rules != last.rules or not _are_same_objects(groups, last.groups):
            last = self._last[name] = _encoded(step, groups, last)
        return last.encoded


def _encoded(step: OptimizerStep, groups: _Groups, last: _Encoded | None) -> _Encoded:
    rules = [group.rule for group in step.groups]
    traced = [rule.message for rule in rules if rule is not None]
    values = [_values_of(step, group) for group in step.groups]
    text = repr((values, [rule.encoded for rule in rules if rule is not None]))
    kept = groups if all(map(_is_fixed, groups)) else ()
    if last is not None and last.text == text:
        return last._replace(groups=kept, rules=rules)
    program = OptimizerProgram(
        name=step.optimizer,
        class_name=step.class_name,
        groups=map(encode_values, values),
        rules=traced,
    )
    header = UpdateHeader(program=UpdateProgram(optimizer=program))
    return _Encoded(kept, rules, text, header.SerializeToString())


def _values_of(step: OptimizerStep, group: GroupStep) -> Mapping[str, Value]:
    if group.rule is not None:
        return group.rule.values_of(group.hyperparameters)
    return values_of(rule_named(step.class_name), group.hyperparameters)


def _are_same_objects(some: _Groups, others: _Groups) -> bool:
    """Return whether these are the very objects, which is quickly known."""
    if len(some) != len(others):
        return False
    return all(
        [*one] == [*other] and all(map(is_, one.values(), other.values()))
        for one, other in zip(some, others, strict=True)
    )


def _is_fixed(value: object) -> bool:
    """Return whether nobody can change a hyperparameter in place."""
    if isinstance(value, Mapping):
        return all(map(_is_fixed, value.values()))
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    return value is None or isinstance(value, bool | int | float | str)
