"""Cores on hosts, as the program that drives them has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import nn

from stratagem._core.device_names import canonicalize
from stratagem._core.distributed_variables import SyncOnReadVariable
from stratagem._core.reduction import CrossDeviceOps, ReductionToOneDevice
from stratagem._core.variables import Variable
from stratagem._hosting.hosting import Slots
from stratagem._local.hosting import CopiesHosting, Unite
from stratagem._local.mirrored import CopiesExtended, LocalReplicas
from stratagem._local.optimizers import LocalOptimizers
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.multi_step import MultiStepContext, require_as_many
from stratagem._tpu.cores import (
    Cores,
    CoresStrategy,
    HostPlan,
    HostsDataset,
    HostsIterator,
    LoopStep,
    Recipe,
    Topology,
)
from stratagem._tpu.host import (
    Writes,
    carry_out,
    loop,
    nothing,
    optimizers_with_state,
    read_slots,
    run,
)
from stratagem._tpu.session import HostsSession
from stratagem._tpu.values import (
    HostAnswer,
    LoopOutputs,
    Marks,
    Valued,
    context_of,
    malformed,
    of_all_cores,
    raised_by,
    share_of,
    slots_of,
    texts,
    variable_of,
    write,
)
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import InvalidTypeError, MalformedStreamError


class Memory:
    """Tells what the hosts do not know yet, and takes over what they have changed."""

    def __init__(self, optimizers: LocalOptimizers) -> None:
        self._optimizers = optimizers
        self._marks = Marks()
        # The name of the optimizer and that of the variable.
        self._new_slots: set[tuple[str, str]] = set()

    @property
    def has_new_slots(self) -> bool:
        """Whether there is state of optimizers that the hosts do not know."""
        return bool(self._new_slots)

    def set_slots(
        self, optimizer: str, slots: Mapping[Variable, Mapping[str, torch.Tensor]]
    ) -> None:
        """Replace an optimizer's state here, and on the hosts with the next call."""
        for variable, state in slots.items():
            self._optimizers.replace_slots(optimizer, variable, state)
            self._new_slots.add((optimizer, variable.name))

    def writes(self, state: Sequence[Valued]) -> Writes:
        """Return what the hosts do not know of all variables and parameters."""
        variables = [*map(variable_of, state)]
        values = {
            position: tensor.detach()
            for position, tensor in enumerate(map(_value, variables))
            if self._marks.is_new(variables[position], tensor)
        }
        slots = [
            (optimizer, position, self._optimizers.slots(optimizer, variable))
            for position, variable in enumerate(variables)
            for optimizer, name in sorted(self._new_slots)
            if name == variable.name
        ]
        return Writes(values, slots)

    def note_sent(self, state: Sequence[Valued], writes: Writes) -> None:
        variables = [*map(variable_of, state)]
        for position in writes.values:
            self._mark(variables[position])
        for optimizer, position, _ in writes.slots:
            self._new_slots.discard((optimizer, variables[position].name))

    def require_fitting(
        self,
        state: Sequence[Valued],
        modules: Sequence[nn.Module],
        answer: HostAnswer,
        sender: str,
    ) -> None:
        """Check that what a host has changed is of variables and buffers that there are.

        Raises:
            MalformedStreamError: It is not.
        """
        for position, value in answer.values.items():
            if not 0 <= position < len(state):
                raise malformed(sender, f"a value of variable {position} of {len(state)}")
            variable = variable_of(state[position])
            if value.shape != variable.shape:
                raise malformed(sender, f"{variable.name!r} in the shape {tuple(value.shape)}")
        for position, key in answer.buffers:
            if not 0 <= position < len(modules) or key not in modules[position]._buffers:
                raise malformed(sender, f"the buffer {key[:80]!r}, which no module has")

    def take_over(
        self, state: Sequence[Valued], modules: Sequence[nn.Module], answer: HostAnswer
    ) -> None:
        """Take over what a host has changed, in cross-replica context."""
        for position, value in answer.values.items():
            write(state[position], value)
            self._mark(variable_of(state[position]))
        with torch.no_grad():
            for (position, key), value in answer.buffers.items():
                buffer = modules[position]._buffers[key]
                if buffer is not None and not torch.equal(buffer, value):
                    buffer.copy_(value)

    def _mark(self, variable: Variable) -> None:
        self._marks.mark(variable, _value(variable))


class HostsHosting(CopiesHosting):
    """Hosts modules in the program, while their optimizers step on the hosts."""

    def __init__(
        self,
        extended: StrategyExtended,
        names: Sequence[str],
        cross_device_ops: CrossDeviceOps,
        unite: Unite,
        cores: RemoteCores,
    ) -> None:
        super().__init__(extended, names, cross_device_ops, unite)
        self._cores = cores
        self.memory = Memory(self.optimizers)

    def begin_session(self, keep_slots: bool) -> None:
        """Note that the next hosts know nothing; `keep_slots` of optimizers that are known here."""
        if not keep_slots:
            self.optimizers = LocalOptimizers()
        self.memory = Memory(self.optimizers)

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots]:
        found = self._cores.slots(optimizer, variables)
        return super().slots(optimizer, variables) if found is None else found

    def all_slots(self, optimizer: str) -> Mapping[Variable, Slots]:
        variables = self.variables()
        return dict(zip(variables, self.slots(optimizer, variables), strict=True))

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        self.memory.set_slots(optimizer, slots)

    def stateful_optimizers(self) -> Iterable[str]:
        there = self._cores.optimizers_with_state()
        return sorted({*super().stateful_optimizers(), *there})


def _value(variable: Variable) -> torch.Tensor:
    return variable.values[0].value()


def _on_host(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Return a call for a host, which gets its own counterpart of each argument."""
    return partial(function, *args)


class TotalVariable(SyncOnReadVariable):
    """A variable of which the program has the total of all cores."""

    def _share(self, total: torch.Tensor, index: int) -> torch.Tensor:
        return total


class HostsReplicas(LocalReplicas):
    """Replicas on hosts. The program has one copy of what they have."""

    sync_on_read = TotalVariable

    def __init__(self, cores: RemoteCores) -> None:
        super().__init__((canonicalize("CPU:0"),), ReductionToOneDevice())
        self._cores = cores

    def count(self) -> int:
        return self._cores.topology.num_cores

    def host(self, extended: StrategyExtended, unite: Unite) -> HostsHosting:
        ops = self.cross_device_ops
        return HostsHosting(extended, self.devices, ops, unite, self._cores)


class RemoteCores(Cores):
    """The cores of a `TPUStrategy` that are on hosts.

    The program has one copy of each variable and parameter. What it writes goes to the hosts with
    the next call, and what a call changes there comes back at its end. Nothing is connected before
    the hosts are needed.
    """

    def __init__(
        self,
        extended: CopiesExtended,
        resolver: ClusterResolver,
        job: str,
        num_cores: int | None,
        outcomes: OutcomeForm,
    ) -> None:
        super().__init__(extended, HostsReplicas(self), job)
        self._outcomes = outcomes
        self._open = partial(
            HostsSession, resolver=resolver, job=job, num_cores=num_cores, outcomes=outcomes
        )
        self._opened: HostsSession | None = None

    # The hosts.

    @property
    def session(self) -> HostsSession:
        """The session with the hosts, which is opened when it is needed first."""
        if self._opened is None:
            self._opened = self._open(self._strategy())
        return self._opened

    def _strategy(self) -> CoresStrategy:
        return cast(CoresStrategy, self.extended._container_strategy())

    @property
    def _hosting(self) -> HostsHosting:
        return cast(HostsHosting, self.extended._hosting)

    @property
    def calls(self) -> int:
        return 0 if self._opened is None else self._opened.calls

    def connect(self) -> None:
        """Connect to the hosts, anew if they were given up or lost."""
        if self._opened is not None and self._opened.failed:
            self._close_session(keep_slots=False)
        _ = self.session

    def disconnect(self) -> None:
        """End the session; state of optimizers is kept here for the next one."""
        if self._opened is None:
            return
        known: list[tuple[str, Any]] = []
        if not self._opened.failed:
            names = self.optimizers_with_state()
            known = [(name, self._hosting.all_slots(name)) for name in names]
        self._close_session(keep_slots=True)
        for name, slots in known:
            self._hosting.set_slots(name, slots)

    def _close_session(self, keep_slots: bool) -> None:
        assert self._opened is not None
        self._opened.close()
        self._opened = None
        self._hosting.begin_session(keep_slots)

    def plan(self) -> HostPlan:
        return self.session.plan

    @property
    def topology(self) -> Topology:
        return self.session.topology

    @property
    def devices(self) -> Sequence[str]:
        return self.topology.devices

    # Calls.

    @property
    def _senders(self) -> Sequence[str]:
        """The hosts that are used, for errors."""
        job = self.topology.job
        return [f"/job:{job}/task:{task}" for task in self.topology.used_tasks]

    @property
    def _first(self) -> str:
        return self._senders[0]

    def _on_hosts(self, *works: Callable[[], Any]) -> list[tuple[Any, str]]:
        """Have each host do its work, or all the same work; return each result, and whose it is."""
        self.extended._before_replicas()
        state, modules = self._state(), self._hosting.adopter.buffers.modules()
        memory = self._hosting.memory
        writes = memory.writes(state)
        known, trusted = (self._strategy(), state, modules, writes), self._outcomes.trusts_worker
        calls = [_on_host(carry_out, *known, work, trusted) for work in works]
        encoded = self.session.call(calls)
        try:
            answers = [*map(HostAnswer.decode, encoded, self._senders)]
            memory.require_fitting(state, modules, answers[0], self._first)
        except MalformedStreamError as malformation:
            self.session.fail(str(malformation))
            raise
        memory.note_sent(state, writes)
        memory.take_over(state, modules, answers[0])
        error = raised_by(answers, self.topology.used_tasks, self._outcomes)
        if not all(answer.in_step for answer in answers):
            self.session.fail(f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        pairs = zip(answers, self._senders, strict=True)
        return [(self._outcomes.load(answer.result, sender), sender) for answer, sender in pairs]

    def _state(self) -> list[Valued]:
        owners = self.extended._names.owners()
        variables = [one for one in owners if isinstance(one, Variable)]
        return [*(hosted.parameter for hosted in self._hosting.parameters), *variables]

    def run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        each = len(self.topology.used_cores)
        works = [
            _on_host(
                run,
                self._strategy(),
                fn,
                *share_of((tuple(args), kwargs), range(first, first + each)),
            )
            for first in range(0, self.topology.num_cores, each)
        ]
        found = self._on_hosts(*works)
        for results, sender in found:
            # What is the same on all cores of a host is there once.
            if type(results) is not tuple or len(results) not in (1, each):
                raise malformed(sender, f"something else than results of {each} cores")
        return of_all_cores([*chain.from_iterable(results for results, _ in found)])

    def loop(
        self, step: LoopStep, iterator: Any, iterations: int, initial_loop_values: Any
    ) -> MultiStepContext:
        if not isinstance(iterator, HostsIterator):
            raise InvalidTypeError(
                "A loop on hosts takes an iterator of a dataset that they read themselves, not "
                f"{iterator!r}; make it by iter() of what distribute_datasets_from_function or "
                "experimental_distribute_dataset of this strategy returns"
            )
        work = _on_host(loop, self._strategy(), step, iterator, iterations)
        found = self._on_hosts(work)
        hosts = [LoopOutputs.decode(parts, sender) for parts, sender in found]
        for outputs_of_host, (_, sender) in zip(hosts, found, strict=True):
            if not outputs_of_host.has_same_names(hosts[0]):
                raise malformed(sender, "outputs of other names than the first host has")
        context = context_of(hosts)
        if initial_loop_values is not None:
            outputs = context.last_step_outputs
            require_as_many(self._strategy(), initial_loop_values, outputs)
        return context

    # The state of optimizers.

    def optimizers_with_state(self) -> list[str]:
        """Return the names of the optimizers that have state on the hosts."""
        if self._opened is None:
            return []
        question = _on_host(optimizers_with_state, self._strategy())
        return texts(self._opened.ask(question), self._first)

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots] | None:
        """Return the state on the hosts; None while there are none."""
        if self._opened is None:
            return None
        if self._hosting.memory.has_new_slots:
            self._on_hosts(nothing)
        valued = {variable_of(one).name: one for one in self._state()}
        trained = [valued[variable.name] for variable in variables]
        question = _on_host(read_slots, self._strategy(), optimizer, trained)
        return slots_of(self._opened.ask(question), len(trained), self._first)

    # Input.

    def open_input(self, recipe: Recipe) -> Any:
        return HostsIterator(self._strategy(), recipe)

    def distribute(self, here: Callable[[], Any], there: Recipe) -> Any:
        return HostsDataset(self._strategy(), there)
