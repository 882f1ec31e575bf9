"""Optimizers whose steps the servers take, and whose state they keep."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TypeAlias

import torch

from stratagem._core.options import ReduceOp
from stratagem._core.variables import Variable
from stratagem._gradients import Compressor, GradientOverlap, OptimizerStep, VariableGradients
from stratagem._parameter_server.hosting.creation import RemoteVariables
from stratagem._parameter_server.hosting.gradients import (
    OverlappedPush,
    ServerBatches,
    add_gradient,
    no_batches,
)
from stratagem._parameter_server.hosting.push import Push, RowsBehind, Update
from stratagem._parameter_server.hosting.steps import Staged, StepPermit
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.inner_states import is_of_worker
from stratagem._parameter_server.tables.variable import require_whole_state
from stratagem._parameter_server.variables.variable import (
    RemoteVariable,
    by_server,
    divided_slots,
    joined_slots,
    parts_of,
)
from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.reads import Reading
from stratagem._ps_client.requests.updates import Limits
from stratagem._ps_client.requests.variables import create, delete, list_variables
from stratagem.consistency import Consistency
from stratagem_proto.errors import AlreadyExistsError
from stratagem_proto.v1.parameter_server_pb2 import Contribution, StepMark
from stratagem_proto.v1.update_program_pb2 import REDUCTION_MEAN, REDUCTION_SUM
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT, VariableSpec
from stratagem_proto.wire.tensors import allocate, spec_of

Slots = Mapping[str, torch.Tensor]

ReadsBehind: TypeAlias = Callable[[OptimizerStep, AbstractSet[int]], RowsBehind]


class RemoteOptimizers:
    """Steps of optimizers on servers, and the optimizers' state there."""

    def __init__(self, store: RemoteStore, variables: RemoteVariables) -> None:
        self._store = store
        self._variables = variables
        self._overlaps: dict[str, OverlappedPush] = {}
        self._stepped: set[str] = set()

    def add(self, name: str, consistency: Consistency | None = None) -> None:
        """Take in an optimizer, perhaps with another consistency than the strategy's."""
        if consistency is not None:
            self._store.servers.require_visible(self._store.first)
        self._store.step_tracker.add(name, consistency)

    def keep(self, optimizers: Collection[str]) -> None:
        """Forget all optimizers but these."""
        self._overlaps = {name: one for name, one in self._overlaps.items() if name in optimizers}
        for known in (self._store.step_tracker, self._store.routes, self._store.programs):
            known.keep(optimizers)

    def begin_run(self) -> None:
        """Note that none has taken a step in the run that begins."""
        self._stepped.clear()

    def apply(self, step: OptimizerStep, rows_behind: ReadsBehind) -> bool:
        """Have the servers apply a step as its consistency says.

        They apply this worker's gradients now, or those of all workers when these have come. Return
        whether the copies of what is stepped are fresh already. `rows_behind` says what a push to
        some servers is to read behind the step.
        """
        store, optimizer = self._store, step.optimizer
        if not store.training.is_whole:
            store.training.require_all(f"a step of {optimizer}")
        # For checkpoints, a run that steps each optimizer once at most is one step with all that it
        # does. Otherwise another one begins where the loop of a run begins anew.
        if optimizer in self._stepped:
            self._stepped.clear()
            store.servers.steps.divide()
        self._stepped.add(optimizer)
        # The answer to the push before may have the permit for this one.
        store.pusher.flush()
        if not store.contributions.is_settled:
            store.contributions.settle()
        if store.ends.behind is not None:
            store.ends.require_fresh()
        permit, overlap = store.permit(optimizer), self._overlaps.get(optimizer)
        closes = permit.consistency._closes_steps
        if closes:
            _contribute(store, step, permit, overlap)
        else:
            _push(store, step, permit, overlap, rows_behind)
            store.step_tracker.finish(optimizer, permit.step)
        store.servers.steps.pace.step_ended(optimizer)
        return not closes

    def await_values(self, step: OptimizerStep) -> None:
        """Wait until the parameters have the values that a step has made."""
        copies = self._store.routes.route(step).copies
        untouched = self.untouched_copies(step)
        if untouched:
            copies = by_server(chain(*copies.values(), untouched))
        self._store.ends.wait(copies)

    def untouched_copies(self, step: OptimizerStep) -> list[RemoteVariable]:
        """Return the copies of what had no gradient here, but may have had one elsewhere."""
        parts = chain.from_iterable(map(parts_of, step.untouched))
        return [part for part in parts if part.has_copy and part.whole.requires_grad]

    def overlap(self, optimizer: str, compressor: Compressor) -> GradientOverlap:
        """Return where the gradients of an optimizer go early."""
        self._overlaps[optimizer] = OverlappedPush(self._store.servers, optimizer, compressor)
        return self._overlaps[optimizer]

    def rejected(self, optimizer: str) -> int:
        """Return how many steps the servers dropped, for gradients not finite."""
        return self._store.reads.rejected.get(optimizer, 0)

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots]:
        """Read the state for each variable, by torch's keys."""
        require_whole_state(variables)
        parts = [part for one in variables for part in self._variables.own_parts(one)]
        found = _read_slots(self._store, optimizer, parts)
        by_part = dict(zip(parts, found, strict=True))
        return [joined_slots(variable, by_part) for variable in variables]

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        """Replace the state for variables."""
        require_whole_state(slots)
        shares: dict[RemoteVariable, Slots] = {}
        for variable, state in slots.items():
            parts = self._variables.own_parts(variable)
            shares |= zip(parts, divided_slots(variable, state), strict=True)
        _replace_slots(self._store, optimizer, shares)


def _read_slots(
    store: RemoteStore, optimizer: str, variables: Sequence[RemoteVariable]
) -> list[dict[str, torch.Tensor]]:
    """Return an optimizer's state for variables; ask each server for names, then for values."""
    found: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    readings: dict[int, list[Reading]] = defaultdict(list)
    for server, specs in _existing(store, optimizer, variables).items():
        for spec in specs:
            value = allocate(spec.tensor)
            found[spec.slot_of][spec.name.removeprefix(_prefix(spec, optimizer))] = value
            readings[server].append(Reading(spec.name, value))
    store.reads.after(store.step_tracker.after(optimizer), readings)
    return [found[variable.name] for variable in variables]


def _replace_slots(
    store: RemoteStore, optimizer: str, slots: Mapping[RemoteVariable, Slots]
) -> None:
    """Replace an optimizer's state for variables; {} is none at all.

    Servers make state that is missing in a step. If a step of another worker comes between, what it
    has made is replaced as well.

    Raises:
        AlreadyExistsError: Others' steps came between each time, for `peer_seconds`.
    """
    specs: dict[int, list[VariableSpec]] = defaultdict(list)
    values: dict[int, list[torch.Tensor]] = defaultdict(list)
    for variable, state in slots.items():
        for key, value in state.items():
            specs[variable.place.server].append(_spec(optimizer, variable, key, value))
            values[variable.place.server].append(value)
    creations = {server: create(specs[server], values[server]) for server in specs}
    end = time.monotonic() + store.peer_seconds
    while True:
        existing = _existing(store, optimizer, slots)
        store.servers.call_all(
            {server: delete([spec.name for spec in found]) for server, found in existing.items()}
        )
        try:
            store.servers.call_all(creations)
            return
        except AlreadyExistsError:
            if time.monotonic() > end:
                raise


def _existing(
    store: RemoteStore, optimizer: str, variables: Iterable[RemoteVariable]
) -> dict[int, list[VariableSpec]]:
    """Return what servers keep for these variables, by server, unless nothing."""
    groups = by_server(variables)
    listings = store.servers.call_all(
        {server: list_variables([VARIABLE_KIND_SLOT]) for server in groups}
    )
    existing = {}
    for server, group in groups.items():
        names = {variable.name for variable in group}
        specs = [info.spec for info in listings[server].variables if info.spec.slot_of in names]
        existing[server] = [
            spec
            for spec in specs
            if spec.name.startswith(_prefix(spec, optimizer)) and not is_of_worker(spec.name)
        ]
    return {server: specs for server, specs in existing.items() if specs}


def _spec(optimizer: str, variable: RemoteVariable, key: str, value: torch.Tensor) -> VariableSpec:
    spec = VariableSpec(
        tensor=spec_of(value),
        kind=VARIABLE_KIND_SLOT,
        slot_of=variable.name,
        device=variable.device_name,
    )
    spec.name = _prefix(spec, optimizer) + key
    return spec


def _prefix(spec: VariableSpec, optimizer: str) -> str:
    return f"{spec.slot_of}/{optimizer}/"


def _push(
    store: RemoteStore,
    step: OptimizerStep,
    permit: StepPermit,
    overlap: OverlappedPush | None,
    rows_behind: ReadsBehind,
) -> None:
    limited = step.within_limits()
    if limited is None:
        return
    program, route = store.programs.encoded(step), store.routes.route(step)
    goes_as_it_is = overlap is None and step.compressor.compression is None
    updates = route.updates(program, limited) if goes_as_it_is else None
    if updates is None:
        batches = _batches(limited, overlap).items()
        updates = {server: batch.update(program) for server, batch in batches}
    rows = rows_behind(step, updates.keys())
    awaited = overlap is not None
    store.pusher.apply(Push(step.optimizer, permit, updates, route.copies, awaited, rows))


def _contribute(
    store: RemoteStore, step: OptimizerStep, permit: StepPermit, overlap: OverlappedPush | None
) -> None:
    """Add this worker's gradients to a step.

    Every server gets a part, if only an empty one, so that all come to the same steps; the parts
    count once all servers have theirs.
    """
    program, limits = store.programs.encoded(step), step.limiter.limits
    totals = step if step.replicas <= 1 else step.mapped(VariableGradients.total)
    of_sum, contribution = Limits(limits), _contribution(store, step, permit)
    batches: ServerBatches = no_batches(step.compressor)
    found: Mapping[int, Update] | None = None
    if overlap is None and step.compressor.compression is None and not step.limiter.has_limits:
        found = store.routes.route(step).updates(program, totals, contribution, of_sum)
    if found is None:
        found = {}
        gradients, offender = step.limiter.own_part(totals.by_variable())
        of_sum = Limits(limits, offender)
        batches = _batches(totals.with_gradients(gradients), overlap)
    requests = {}
    for server in store.servers.used:
        if server in found:
            requests[server] = found[server].request
        else:
            each = batches[server]
            requests[server] = updates.step(
                program, each.gradients, contribution, of_sum, each.backward
            )
    store.servers.call_all(requests)
    store.contributions.commit(Staged(contribution, [*batches.values()]))


def _contribution(store: RemoteStore, step: OptimizerStep, permit: StepPermit) -> Contribution:
    step_tracker, several = store.step_tracker, len(store.servers.used) > 1
    mean = step.reduce_op is ReduceOp.MEAN
    return Contribution(
        step=StepMark(group=step.optimizer, step=permit.step),
        worker=step_tracker.worker or 0,
        num_workers=step_tracker.num_workers,
        replicas=step.replicas,
        reduction=REDUCTION_MEAN if mean else REDUCTION_SUM,
        replicas_to_aggregate=permit.consistency._enough(step_tracker.num_workers),
        global_norm=step.limiter.limits.clip_norm is not None and several,
    )


def _batches(step: OptimizerStep, overlap: OverlappedPush | None) -> ServerBatches:
    """Return what is yet to go to each server of a step with a gradient each."""
    batches = no_batches(step.compressor) if overlap is None else overlap.finish()
    done = () if overlap is None else overlap.variables
    for number, group in enumerate(step.groups):
        for variable, (gradient,) in zip(group.variables, group.gradients, strict=True):
            if variable.name not in done:
                add_gradient(batches, variable, gradient, number)
    return batches
