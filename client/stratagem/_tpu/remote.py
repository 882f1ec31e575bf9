"""Cores on hosts, as the program that drives them has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import nn

from stratagem._core.device_names import canonicalize
from stratagem._core.distributed_variables import SyncOnReadVariable
from stratagem._core.reduction import ReductionToOneDevice
from stratagem._core.variables import Variable
from stratagem._hosting.hosting import Slots
from stratagem._local.hosting import Unite
from stratagem._local.mirrored import CopiesExtended, LocalReplicas
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.multi_step import MultiStepContext, require_as_many
from stratagem._tpu.answers import HostAnswer, malformed, raised_by, slots_of, texts
from stratagem._tpu.call import (
    carry_out,
    loop,
    nothing,
    optimizers_with_state,
    read_slots,
    run,
)
from stratagem._tpu.cores import Cores, HostPlan, LoopStep, Topology
from stratagem._tpu.extended import CoresStrategy
from stratagem._tpu.hosting import HostsHosting
from stratagem._tpu.inputs import HostsDataset, HostsIterator, Recipe
from stratagem._tpu.session import HostsSession
from stratagem._tpu.values import (
    LoopOutputs,
    Valued,
    context_of,
    of_all_cores,
    share_of,
    variable_of,
)
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import InvalidTypeError, MalformedStreamError


def _there(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
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
        """The host that is asked alone."""
        return self._senders[0]

    def _on_hosts(self, *works: Callable[[], Any]) -> list[tuple[Any, str]]:
        """Have each host do its work, or all the same work; return each result, and whose it is."""
        self.extended._before_replicas()
        state, modules = self._state(), self._hosting.adopter.buffers.modules()
        memory = self._hosting.memory
        writes = memory.writes(state)
        known, trusted = (self._strategy(), state, modules, writes), self._outcomes.trusts_worker
        calls = [_there(carry_out, *known, work, trusted) for work in works]
        answers = self._answers(calls, state, modules)
        memory.told(state, writes)
        memory.take_over(state, modules, answers[0])
        error = raised_by(answers, self.topology.used_tasks, self._outcomes)
        if not all(answer.in_step for answer in answers):
            self.session.fail(f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        pairs = zip(answers, self._senders, strict=True)
        return [(self._outcomes.load(answer.result, sender), sender) for answer, sender in pairs]

    def _answers(
        self,
        calls: Sequence[Callable[[], Any]],
        state: Sequence[Valued],
        modules: Sequence[nn.Module],
    ) -> Sequence[HostAnswer]:
        """Have hosts carry out calls; return their answers, once it is clear that they can be."""
        told = self.session.call(calls)
        try:
            answers = [*map(HostAnswer.of, told, self._senders)]
            self._hosting.memory.require_fitting(state, modules, answers[0], self._first)
        except MalformedStreamError as error:
            self.session.fail(str(error))
            raise
        return answers

    def _state(self) -> list[Valued]:
        owners = self.extended._names.owners()
        variables = [one for one in owners if isinstance(one, Variable)]
        return [*(hosted.parameter for hosted in self._hosting.parameters), *variables]

    def run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        each = len(self.topology.used_cores)
        works = [
            _there(
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
        work = _there(loop, self._strategy(), step, iterator, iterations)
        context = context_of(self._outputs(work))
        if initial_loop_values is not None:
            outputs = context.last_step_outputs
            require_as_many(self._strategy(), initial_loop_values, outputs)
        return context

    def _outputs(self, work: Callable[[], Any]) -> Sequence[LoopOutputs]:
        """Return the outputs of a loop on each host."""
        found = self._on_hosts(work)
        outputs = [LoopOutputs.told(parts, sender) for parts, sender in found]
        for one, (_, sender) in zip(outputs, found, strict=True):
            if not one.has_same_names(outputs[0]):
                raise malformed(sender, "outputs of other names than the first host has")
        return outputs

    # The state of optimizers.

    def optimizers_with_state(self) -> list[str]:
        """Return the names of the optimizers that have state on the hosts."""
        if self._opened is None:
            return []
        question = _there(optimizers_with_state, self._strategy())
        return texts(self._opened.ask(question), self._first)

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots] | None:
        """Return the state on the hosts; None while there are none."""
        if self._opened is None:
            return None
        if self._hosting.memory.has_new_slots:
            self._on_hosts(nothing)
        valued = {variable_of(one).name: one for one in self._state()}
        trained = [valued[variable.name] for variable in variables]
        question = _there(read_slots, self._strategy(), optimizer, trained)
        return slots_of(self._opened.ask(question), len(trained), self._first)

    # Input.

    def open_input(self, recipe: Recipe) -> Any:
        return HostsIterator(self._strategy(), recipe)

    def distribute(self, here: Callable[[], Any], there: Recipe) -> Any:
        return HostsDataset(self._strategy(), there)
