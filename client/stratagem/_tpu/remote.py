"""A strategy in the program that drives hosts: variables here, replicas there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import torch

from stratagem._core.device_names import canonicalize
from stratagem._core.distributed_variables.sync_on_read import SyncOnReadVariable
from stratagem._core.options import InputContext
from stratagem._core.values.cross_device_ops import ReductionToOneDevice
from stratagem._core.variables.variable import Variable
from stratagem._gradients.local import LocalOptimizers
from stratagem._hosting.hosting import Slots
from stratagem._input.options import AutoShardPolicy, InputOptions
from stratagem._local.copies import CopiesHosting, CopyOperations
from stratagem._strategies.multi_step import MultiStepContext, require_as_many
from stratagem._strategies.strategy import Strategy
from stratagem._tpu.call import (
    HostAnswer,
    carry_out,
    loop,
    nothing,
    optimizers_with_state,
    raised_by,
    read_slots,
    run,
)
from stratagem._tpu.cores import CoresExtended, CoresStrategy
from stratagem._tpu.inputs import HostsDataset, HostsIterator, Recipe
from stratagem._tpu.memory import Memory
from stratagem._tpu.outputs import context_of, of_all_cores, share_of
from stratagem._tpu.session import HostsSession
from stratagem._tpu.topology import HostPlan, Topology
from stratagem._tpu.valued import Valued, variable_of
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import InvalidTypeError


def _there(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Return a call of a function by a host, where what is named here is its own."""
    return partial(function, *args)


class TotalVariable(SyncOnReadVariable):
    """A variable of which the program has the total of all cores."""

    def _share(self, total: torch.Tensor, index: int) -> torch.Tensor:
        return total


class RemoteCoresExtended(CoresExtended):
    """The `extended` of a `TPUStrategy` whose cores are on hosts.

    The program has one copy of each variable and parameter. What it writes goes to the
    hosts with the next call; what a call changes there comes back at its end. Nothing
    is connected before the hosts are needed.

    Args:
        container_strategy: The strategy.
        resolver: Describes the cluster.
        job: The job of the hosts.
        num_cores: How many cores to use; None for all.
    """

    _sync_on_read = TotalVariable
    _hosting: HostsHosting

    def __init__(
        self,
        container_strategy: CoresStrategy,
        resolver: ClusterResolver,
        job: str,
        num_cores: int | None,
    ) -> None:
        self._job = job
        self._open = partial(
            HostsSession, resolver=resolver, job=job, num_cores=num_cores
        )
        self._opened: HostsSession | None = None
        here = (canonicalize("CPU:0"),)
        super().__init__(container_strategy, here, ReductionToOneDevice())
        self._memory = Memory(self._hosting.optimizers)

    def _new_hosting(self) -> HostsHosting:
        operations = CopyOperations(self._cross_device_ops, self._united)
        return HostsHosting(self, self._devices, operations)

    # The hosts.

    @property
    def _session(self) -> HostsSession:
        if self._opened is None:
            self._opened = self._open(self._strategy())
        return self._opened

    def _strategy(self) -> CoresStrategy:
        return cast(CoresStrategy, self._container_strategy())

    @property
    def calls_per_host(self) -> int:
        return 0 if self._opened is None else self._opened.calls

    def connect(self) -> None:
        """Connect to the hosts, anew if they were given up or lost."""
        if self._opened is not None and self._opened.failed:
            self._forget_session()
            self._hosting.optimizers = LocalOptimizers()
        _ = self._session

    def disconnect(self) -> None:
        """End the session; state of optimizers is kept here for the next one."""
        if self._opened is None:
            return
        known: list[tuple[str, Any]] = []
        if not self._opened.failed:
            known = [(name, self._hosting.all_slots(name)) for name in self._asked()]
        self._forget_session()
        for name, slots in known:
            self._memory.set_slots(name, slots)

    def _forget_session(self) -> None:
        assert self._opened is not None
        self._opened.close()
        self._opened = None
        self._memory = Memory(self._hosting.optimizers)

    def _plan(self) -> HostPlan:
        """Return what hosts are told of the strategy."""
        return self._session.plan

    @property
    def _topology(self) -> Topology:
        return self._session.topology

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._topology.num_cores

    # Calls.

    def _on_hosts(self, *works: Callable[[], Any]) -> list[Any]:
        """Let each host do something; return what they have returned.

        Args:
            works: What each of them is to do; one for all if it is the same.
        """
        self._before_replicas()
        state, modules = self._state(), self._hosting.adopter.buffers.modules()
        writes = self._memory.writes(state)
        calls = [
            _there(carry_out, self._strategy(), state, modules, writes, work)
            for work in works
        ]
        answers: list[HostAnswer] = self._session.call(calls)
        self._memory.told(state, writes)
        self._memory.take_over(state, modules, answers[0])
        error = raised_by(answers, self._topology.used_tasks)
        if not all(answer.in_step for answer in answers):
            self._session.fail(f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        return [answer.load() for answer in answers]

    def _state(self) -> list[Valued]:
        owners = self._names.owners()
        variables = [one for one in owners if isinstance(one, Variable)]
        return [*(hosted.parameter for hosted in self._hosting.parameters), *variables]

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        each = len(self._topology.used_cores)
        works = [
            _there(
                run,
                self._strategy(),
                fn,
                *share_of((tuple(args), kwargs), range(first, first + each)),
            )
            for first in range(0, self._topology.num_cores, each)
        ]
        return of_all_cores([*chain.from_iterable(self._on_hosts(*works))])

    def _experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: object,
        iterations: int,
        initial_loop_values: Any,
    ) -> MultiStepContext:
        if not isinstance(iterator, HostsIterator):
            raise InvalidTypeError(
                "A loop on hosts takes an iterator of a dataset that they read "
                f"themselves, not {iterator!r}; make it by iter() of what "
                "distribute_datasets_from_function or experimental_distribute_dataset "
                "of this strategy returns"
            )
        work = _there(loop, self._strategy(), fn, iterator, iterations)
        context = context_of(self._on_hosts(work))
        if initial_loop_values is not None:
            outputs = context.last_step_outputs
            require_as_many(self._strategy(), initial_loop_values, outputs)
        return context

    # The state of optimizers.

    def _asked(self) -> list[str]:
        """Return the names of the optimizers that have state on the hosts."""
        if self._opened is None:
            return []
        question = _there(optimizers_with_state, self._strategy())
        names: list[str] = self._opened.ask(question)
        return names

    def _asked_slots(
        self, optimizer: str, variables: Sequence[Variable]
    ) -> Sequence[Slots] | None:
        """Return the state on the hosts; None while there are none."""
        if self._opened is None:
            return None
        if self._memory.has_new_slots:
            self._on_hosts(nothing)
        valued = {variable_of(one).name: one for one in self._state()}
        trained = [valued[variable.name] for variable in variables]
        question = _there(read_slots, self._strategy(), optimizer, trained)
        found: list[Slots] = self._opened.ask(question)
        return found

    # Input.

    def _opened_input(self, recipe: Recipe) -> Any:
        return HostsIterator(self._strategy(), recipe)

    def _distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions | None,
        auto_shard_policy: AutoShardPolicy | int,
    ) -> Any:
        def opened(strategy: Strategy) -> Any:
            return iter(
                strategy.experimental_distribute_dataset(
                    dataset, options, auto_shard_policy
                )
            )

        return HostsDataset(self._strategy(), opened)

    def _distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[InputContext], Any],
        options: InputOptions | None,
    ) -> Any:
        def opened(strategy: Strategy) -> Any:
            return iter(strategy.distribute_datasets_from_function(dataset_fn, options))

        return HostsDataset(self._strategy(), opened)


class HostsHosting(CopiesHosting):
    """Hosts modules in the program, while their optimizers step on the hosts."""

    _extended: RemoteCoresExtended

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots]:
        asked = self._extended._asked_slots(optimizer, variables)
        return super().slots(optimizer, variables) if asked is None else asked

    def all_slots(self, optimizer: str) -> Mapping[Variable, Slots]:
        """Return the state for all variables."""
        variables = self.variables()
        return dict(zip(variables, self.slots(optimizer, variables), strict=True))

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        self._extended._memory.set_slots(optimizer, slots)

    def stateful_optimizers(self) -> Iterable[str]:
        return sorted({*super().stateful_optimizers(), *self._extended._asked()})
