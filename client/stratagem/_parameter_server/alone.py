"""What a strategy with parameter servers is made of where there is no cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem._checkpoints.alone import Held
from stratagem._checkpoints.files import origins_in_checkpoint, state_of
from stratagem._checkpoints.restoring import RestoreStatus, UnusedOfSeveral
from stratagem._core.names import Origin
from stratagem._core.protocols import LocalStepsTold, Seen
from stratagem._core.variables import LocalVariable, Variable
from stratagem._gradients import Compressor, OptimizerStep
from stratagem._hosting.adoption import Adoption
from stratagem._hosting.hosted_parameter import hosted_parameter
from stratagem._hosting.hosting import Slots
from stratagem._hosting.local_steps import OwnSteps
from stratagem._local.one_copy import CentralStorageExtended, HomeHosting
from stratagem._local.optimizers import LocalOptimizers
from stratagem._parameter_server.cluster import OneProcess
from stratagem._parameter_server.forgetting import chosen, drop
from stratagem._parameter_server.inner_states import (
    keys_of_worker,
    own_state,
    without_residuals,
)
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.recording import of_keys
from stratagem._parameter_server.tables.tables import take_rows
from stratagem._parameter_server.tables.variable import (
    NOMINAL_ROWS,
    TableVariable,
    require_no_table,
    require_whole_state,
)
from stratagem._parameter_server.variables.shards import VariablePlacement
from stratagem._strategies.extended import StrategyExtended
from stratagem.consistency import Consistency
from stratagem_proto.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from stratagem_storage.checkpoint.folder import Checkpoint
from stratagem_storage.checkpoint.wholes import WholeTable, wholes_of

if TYPE_CHECKING:
    from stratagem._parameter_server.tables.alone import OwnTables
    from stratagem._strategies.strategy import Strategy


class AloneHosting(HomeHosting):
    """Takes optimizers of any consistency, with one worker all the same; keeps tables of keys."""

    def __init__(self, extended: StrategyExtended, devices: Sequence[str], home: str) -> None:
        super().__init__(extended, devices, home)
        # How often what is in place of lent parameters was written when it was brought last.
        self._brought: dict[int, int] = {}
        self.optimizers = LocalOptimizers(as_servers=True)
        self._tables: OwnTables | None = None

    # Tables.

    @property
    def tables(self) -> OwnTables:
        """The tables, each of keys; what keeps them is loaded for the first one."""
        if self._tables is None:
            from stratagem._parameter_server.tables.alone import OwnTables

            self._tables = OwnTables(self.parameters)
        return self._tables

    @contextmanager
    def watching(self, name: str | None) -> Iterator[None]:
        with of_keys(), super().watching(name):
            yield

    def prepare(self, adoption: Adoption) -> None:
        take_rows(adoption)

    def host(self, adoptions: Sequence[Adoption]) -> None:
        for adoption in adoptions:
            if isinstance(adoption.parameter, TableParameter):
                strategy = self._extended._container_strategy()
                self.tables.host(adoption, self.origin(adoption.name), strategy)
        super().host([one for one in adoptions if not isinstance(one.parameter, TableParameter)])

    def origin(self, name: str) -> Origin | None:
        found = super().origin(name)
        # A table has as many rows in checkpoints as are sure to be there: none.
        return found and found._replace(form=found.form.replace(str(NOMINAL_ROWS), "0"))

    def variables(self) -> list[Variable]:
        """Return the variables but for tables, which are saved by themselves."""
        return [one for one in super().variables() if not isinstance(one, TableVariable)]

    def own_tables(self) -> list[TableVariable]:
        """Return the tables, in the order of their making."""
        return [] if self._tables is None else list(self._tables)

    def take_step(self, step: OptimizerStep, reduced: Sequence[Any]) -> None:
        if self._tables is None:
            return super().take_step(step, reduced)
        of_tables, rest, gradients = [], [], list[Any]()
        given = iter(reduced)
        for number, group in enumerate(step.groups):
            others = []
            for update in group.updates:
                gradient = next(given)
                if isinstance(update.variable, TableVariable):
                    of_tables.append((number, update.variable, gradient))
                else:
                    others.append(update)
                    gradients.append(gradient)
            rest.append(group.with_updates(others) if len(others) < len(group.variables) else group)
        # Whatever is refused is refused by these, before anything has changed.
        if of_tables:
            self._tables.step(step, of_tables)
        super().take_step(step._replace(groups=tuple(rest)), gradients)

    def end_run(self) -> None:
        """Have the next run read rows anew."""
        if self._tables is not None:
            self._tables.forget_pulled()

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots]:
        require_whole_state(variables)
        return super().slots(optimizer, variables)

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        require_whole_state(slots)
        super().set_slots(optimizer, slots)

    def drop(self, names: Collection[str], optimizers: Collection[str]) -> None:
        """Delete the rows of tables that are forgotten, and the state of optimizers."""
        if self._tables is not None:
            self._tables.remove(names)
            for optimizer in optimizers:
                self._tables.forget_optimizer(optimizer)

    # Checkpoints.

    def state_dict(self) -> dict[str, torch.Tensor]:
        if names := [table.name for table in self.own_tables()]:
            raise UnimplementedError(
                f"{names[0]!r} has rows of keys, which have no place in a state dict, nor in one "
                "file of it; save to a folder by strategy.save(FOLDER), or write the model alone "
                "by strategy.export(model, PATH, stored_rows=True)",
                variable=names[0],
            )
        return super().state_dict()

    def held(self) -> Held:
        """Return all that is to be in a checkpoint, as of now."""
        state = super().state_dict()
        return Held(state, None if self._tables is None else self._tables.snapshot())

    def load(self, checkpoint: Checkpoint, strict: bool) -> RestoreStatus:
        """Replace values by those of a checkpoint, also of what is made later."""
        wholes = wholes_of(checkpoint.index)
        has_tables = any(isinstance(one, WholeTable) and one.is_dynamic for one in wholes.values())
        if self._tables is None and not has_tables:
            return self.load_state_dict(state_of(checkpoint), strict)
        staged = self.tables.stage(checkpoint, strict)
        state, origins = (
            state_of(checkpoint, staged.names),
            origins_in_checkpoint(checkpoint, wholes),
        )
        status = self._checkpoints.load(state, strict, origins)
        staged.put()
        unused = UnusedOfSeveral([status._deferred, self.tables])
        return RestoreStatus(unused, [*status.missing, *staged.missing])

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool) -> RestoreStatus:
        names = [table.name for table in self.own_tables()]
        if strict and names:
            raise NotFoundError(
                f"the values have no rows for {names[0]!r}, whose keys no state dict has; restore "
                "a folder that strategy.save() wrote, or what strategy.export() did, or pass "
                "strict=False to leave it as it is",
                variable=names[0],
            )
        status = super().load_state_dict(state, strict)
        return RestoreStatus(status._deferred, [*status.missing, *names])

    # Consistency, and local steps.

    def lend(
        self, parameters: Sequence[nn.Parameter], what: str, is_kept: bool = False
    ) -> list[nn.Parameter]:
        if len(self.devices) > 1:
            raise InvalidArgumentError(
                f"{what} needs one replica in each worker, because several reduce their "
                f"gradients first; here are {len(self.devices)}. Set num_replicas_per_worker=1"
            )
        found = [hosted_parameter(one) for one in parameters]
        require_no_table(one.variable for one in found if one is not None)
        return [self._lent(one) for one in parameters]

    def _lent(self, parameter: nn.Parameter) -> nn.Parameter:
        hosted = hosted_parameter(parameter)
        assert hosted is not None and isinstance(hosted.variable, LocalVariable)
        self.parameters.remove(hosted)
        shared = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        hosted.variable.follow(shared)
        self.parameters.add(shared, hosted.variable, ())
        self._brought[id(shared)] = shared._version
        return shared

    @property
    def local_steps(self) -> LocalStepsTold:
        """What is told of local steps."""
        return self.folders

    def kept_state(
        self, optimizer: str, shapes: Mapping[nn.Parameter, Slots], compressor: Compressor
    ) -> Sequence[Slots]:
        return [own_state(one, 0) for one in self.slots(optimizer, _variables_of(shapes))]

    def keep_state(
        self, optimizer: str, states: Mapping[nn.Parameter, Slots], compressor: Compressor
    ) -> None:
        variables = _variables_of(states)
        present = self.slots(optimizer, variables)
        for variable, slots, state in zip(variables, present, states.values(), strict=True):
            own = keys_of_worker(state, 0)
            self.set_slots(optimizer, {variable: {**without_residuals(slots), **own}})

    def bring(self, shared: Sequence[nn.Parameter], seen: Seen | None = None) -> None:
        self._brought |= {id(one): one._version for one in shared}

    def is_behind(self, shared: Sequence[nn.Parameter]) -> bool:
        return any([one._version != self._brought.get(id(one), one._version) for one in shared])

    def before_replicas(self) -> None:
        super().before_replicas()
        for optimizer in self.optimizers_in_use:
            if isinstance(optimizer, OwnSteps):
                optimizer._follow()

    def name_optimizer(self, class_name: str, consistency: Consistency | None = None) -> str:
        return super().name_optimizer(class_name)


def _variables_of(shared: Iterable[nn.Parameter]) -> list[Variable]:
    found = map(hosted_parameter, shared)
    return [one.variable for one in found if one is not None]


class LocalExtended(CentralStorageExtended):
    """One copy of each variable, in this process. Spec: PS1-1."""

    _hosting: AloneHosting
    _hosting_class = AloneHosting

    def __init__(
        self, container_strategy: Strategy, devices: Sequence[str], parameter_device: str
    ) -> None:
        super().__init__(container_strategy, devices, parameter_device)
        self._cluster = OneProcess()

    def _run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return super()._run(fn, args, kwargs)
        finally:
            self._hosting.end_run()

    def forget(self, objects: Sequence[object]) -> list[str]:
        """Forget objects; see `ParameterServerStrategy.forget`."""
        forgotten = chosen(self._container_strategy(), objects)
        self._before_replicas()
        self._hosting.drop(forgotten.variables, [one.name for one in forgotten.optimizers])
        drop(self._hosting, forgotten)
        return forgotten.names

    def variable_placements(self) -> list[VariablePlacement]:
        """Return where each variable lives: in this process."""
        return [
            VariablePlacement(
                variable.name,
                tuple(variable.shape),
                variable.dtype,
                "/job:localhost/task:0",
                variable.shape.numel() * variable.dtype.itemsize,
            )
            for variable in [*self._hosting.variables(), *self._hosting.own_tables()]
        ]

    def _close(self) -> None:
        """There are no sessions to end."""
