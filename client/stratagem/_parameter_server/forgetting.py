"""Forgetting what a program has made and needs no more: on servers, and in this process.

Garbage of one process does not say that others are done with a variable, which may be what they
train, evaluate or save, and processes collect garbage at different times. So servers delete when
the programs of all workers say so.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from torch import nn

from stratagem._core.names import UniqueNames
from stratagem._core.variables import Variable
from stratagem._hosting.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._hosting.hosting import Hosting
from stratagem._hosting.optimizer import DistributedOptimizer
from stratagem._hosting.other_steps import leave_to_optimizer
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.remote_hosting import RemoteHosting
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._parameter_server.variables.variable import RemoteVariable, parts_of
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from stratagem_proto.v1.variable_requests_pb2 import ListVariablesResponse

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy

_DIGEST_BYTES = 8
_SHOWN_OF_NAME = 100


class Forgotten(NamedTuple):
    """What is to be forgotten at once.

    Attributes:
        modules: Modules with all of their parts.
        hosted: Their parameters.
        variables: The variables of these, and others, by name.
        optimizers: Optimizers, whose state goes too.
    """

    modules: Sequence[nn.Module]
    hosted: Sequence[HostedParameter]
    variables: Mapping[str, Variable | ShardedVariable]
    optimizers: Sequence[DistributedOptimizer]

    @property
    def names(self) -> list[str]:
        """The names of the variables."""
        return sorted(self.variables)

    @property
    def parts(self) -> list[RemoteVariable]:
        """What the variables are on servers."""
        return [part for one in self.variables.values() for part in _parts(one)]


def _parts(variable: Variable | ShardedVariable) -> Sequence[RemoteVariable]:
    whole = variable.variables if isinstance(variable, ShardedVariable) else [variable]
    return [part for one in whole for part in parts_of(one)]


def chosen(strategy: Strategy, objects: Sequence[object]) -> Forgotten:
    """Return what a program wants to be forgotten, after all checks; nothing is changed.

    Raises:
        InvalidTypeError: Something is no module, variable or optimizer.
        InvalidArgumentError: Something is not the strategy's, is a part of something, or was
            forgotten before.
        FailedPreconditionError: An optimizer steps a parameter, or a module has it, that is not
            given as well.
    """
    hosting = cast("Hosting", strategy.extended._hosting)
    modules: dict[int, nn.Module] = {}
    hosted: dict[str, HostedParameter] = {}
    variables: dict[str, Variable | ShardedVariable] = {}
    optimizers: list[DistributedOptimizer] = []
    for one in objects:
        if isinstance(one, nn.Module):
            modules |= {id(part): part for part in one.modules()}
            found = [_hosted_in(strategy, one, parameter) for parameter in one.parameters()]
            own = [each for each in found if each is not None]
            if not own:
                raise _unknown(f"a {type(one).__name__} without a parameter of this strategy")
            hosted |= {each.name: each for each in own}
        elif isinstance(one, Variable | ShardedVariable):
            is_part = isinstance(one, Variable) and one._shard_of is not None
            if is_part or hosting.extended._names.owner(one.name) is not one:
                raise _unknown(f"{one.name!r}, which is no variable of it, or a part of one")
            variables[one.name] = one
        elif isinstance(one, DistributedOptimizer):
            if one not in hosting.optimizers_in_use:
                raise _unknown(f"the optimizer {one.name!r}, which is none of it")
            optimizers.append(one)
        else:
            raise InvalidTypeError(
                "forget() takes modules, Variables and DistributedOptimizers of the strategy, not "
                f"a {type(one).__name__}: {one!r}"
            )
    variables |= {name: each.variable for name, each in hosted.items()}
    forgotten = Forgotten([*modules.values()], [*hosted.values()], variables, optimizers)
    _require_unused(hosting, forgotten, modules)
    return forgotten


def _hosted_in(
    strategy: Strategy, module: nn.Module, parameter: nn.Parameter
) -> HostedParameter | None:
    hosted = hosted_parameter(parameter)
    if hosted is None:
        return None
    if hosted.variable.distribute_strategy is not strategy:
        raise _unknown(f"a {type(module).__name__} with {hosted.name!r} of another strategy")
    return hosted


def _unknown(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"forget() was given {what}; give it what was made in this strategy's scope, as a whole, "
        "and was not forgotten before"
    )


def _require_unused(hosting: Hosting, forgotten: Forgotten, modules: Mapping[int, object]) -> None:
    """Check that nothing that stays uses what is to be forgotten."""
    # What the program has dropped does not count, whether or not it was collected by itself.
    gc.collect()
    ids = {id(one) for one in [*forgotten.variables.values(), *forgotten.parts]}
    living = [one for one in hosting.optimizers_in_use if isinstance(one, DistributedOptimizer)]
    for optimizer in sorted(set(living).difference(forgotten.optimizers), key=lambda one: one.name):
        for variable in _stepped(optimizer):
            found = [variable, variable.container, *parts_of(variable)]
            if not ids.isdisjoint(map(id, found)):
                raise _still_used(variable.name, f"the optimizer {optimizer.name!r} steps")
    for hosted in forgotten.hosted:
        for module in hosted.owners():
            if id(module) not in modules:
                raise _still_used(hosted.name, f"another module, a {type(module).__name__}, has")


def _stepped(optimizer: DistributedOptimizer) -> list[Variable]:
    groups = [group["params"].variables() for group in optimizer.param_groups]
    # A lazy parameter has none yet.
    return [one for group in groups for one in group if one is not None]


def _still_used(variable: str, who: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"{variable!r} cannot be forgotten: {who} it; drop that, or give it to the same forget()",
        variable=variable,
    )


def drop(hosting: Hosting, forgotten: Forgotten) -> None:
    """Leave modules to the program, and give all names back."""
    names: UniqueNames = hosting.extended._names
    for hosted in forgotten.hosted:
        leave_to_optimizer(hosted)
        hosting.parameters.remove(hosted)
    for one in [*forgotten.names, *(part.name for part in forgotten.parts)]:
        names.forget(one)
    for name in hosting.adopter.leave(forgotten.modules):
        names.forget(name)
    for optimizer in forgotten.optimizers:
        hosting.optimizers_in_use.discard(optimizer)
        optimizer._forget()


class _Cluster(Protocol):
    def meet(self, name: str, passed: int, timeout: float | None) -> None: ...


class Forgetting:
    """Forgets what is on servers, with all workers.

    Args:
        hosting: The strategy's.
        store: The variables on the servers.
        cluster: Where the workers meet.
        keepers: Lists that keep variables alive, from which they are taken.
    """

    def __init__(
        self,
        hosting: RemoteHosting,
        store: RemoteStore,
        cluster: _Cluster,
        keepers: Sequence[list[Any]],
    ) -> None:
        self._hosting, self._store, self._cluster = hosting, store, cluster
        self._keepers = keepers
        self._passed: Counter[str] = Counter()

    def forget(self, strategy: Strategy, objects: Sequence[object], alone: bool) -> list[str]:
        """Forget objects; see `ParameterServerStrategy.forget`.

        Args:
            strategy: The strategy, which is entered.
            objects: The objects.
            alone: Whether no programs of other workers come.
        """
        forgotten = chosen(strategy, objects)
        self._store.servers.require_present()
        # What modules keep is what is on the servers now, and all pushes are over.
        strategy.extended._before_replicas()
        self._store.pusher.flush()
        membership = self._hosting.membership
        meets = membership.trains and membership.num_workers > 1 and not alone
        if meets:
            self._meet(forgotten, "before")
        if membership.creates:
            self._delete(forgotten)
        if meets:
            # Else another worker could attach to what is yet to be deleted.
            self._meet(forgotten, "after")
        self.drop(forgotten)
        return forgotten.names

    def _meet(self, forgotten: Forgotten, moment: str) -> None:
        names = [*forgotten.names, *(optimizer.name for optimizer in forgotten.optimizers)]
        digest = blake2b("\n".join(names).encode(), digest_size=_DIGEST_BYTES).hexdigest()
        name = f"stratagem/forget/{names[0][:_SHOWN_OF_NAME]}/{digest}/{moment}"
        self._cluster.meet(name, self._passed[name], None)
        self._passed[name] += 1

    def _delete(self, forgotten: Forgotten) -> None:
        """Have the servers delete what they have of it; after an error it may be repeated."""
        wanted = {(part.place.server, part.name): part.place.ordinal for part in forgotten.parts}
        states = tuple(f"/{optimizer.name}/" for optimizer in forgotten.optimizers)
        self._store.delete(_present(self._store.listing(), wanted, states))

    def drop(self, forgotten: Forgotten) -> None:
        """Have this process know nothing of it any more."""
        parts = forgotten.parts
        for part in parts:
            part.end()
        dropped = {id(one) for one in [*parts, *forgotten.variables.values()]}
        for keeper in self._keepers:
            keeper[:] = [one for one in keeper if id(one) not in dropped]
        self._hosting.forget(parts, forgotten.variables)
        drop(self._hosting, forgotten)
        self._hosting.forget_optimizers()

    def drop_ordinals(self, ordinals: Iterable[int]) -> None:
        """Do so on a worker server, with what a coordinator has forgotten."""
        wanted = frozenset(ordinals)
        parts = [one for one in self._hosting.established if one.place.ordinal in wanted]
        whole = [part if part.container is None else part.container for part in parts]
        variables = {one.name: one for one in whole}
        hosted = [
            one for one in self._hosting.parameters if variables.get(one.name) is one.variable
        ]
        modules = {id(one): one for each in hosted for one in each.owners()}
        self.drop(Forgotten([*modules.values()], hosted, variables, []))


def _present(
    listing: Mapping[int, ListVariablesResponse],
    wanted: Mapping[tuple[int, str], int],
    states: tuple[str, ...],
) -> list[tuple[int, str]]:
    """Return what servers have of variables, and of optimizers' states beside other variables."""
    found = []
    for server, listed in listing.items():
        for info in listed.variables:
            spec = info.spec
            if spec.slot_of:
                key = spec.name.removeprefix(spec.slot_of)
                is_left = (server, spec.slot_of) not in wanted and key.startswith(states)
            else:
                is_left = wanted.get((server, spec.name)) == spec.ordinal
            if is_left:
                found.append((server, spec.name))
    return found
