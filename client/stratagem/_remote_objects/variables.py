"""Strategies, variables and parameters as workers have them: without values of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from stratagem._cluster.tasks import ClusterSpec, Tasks
from stratagem._core.distributed_variables import AggregatingVariable
from stratagem._core.variables import Variable
from stratagem._hosting.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._parameter_server.attached import AttachedStrategy, ParameterParts
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.remote_hosting import RemoteHosting
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._parameter_server.tables.variable import TableVariable
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._parameter_server.variables.variable import (
    RemoteVariable,
    SplitVariable,
    parts_of,
    remote_of,
)
from stratagem._ps_client.group import ServerGroup
from stratagem._shipping.kinds import (
    Change,
    ChangingKind,
    ObjectKind,
    SessionKind,
    WorkerTask,
)
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.strategy import Strategy
from stratagem.cluster_resolver import ClusterResolver, SimpleClusterResolver
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.v1.variable_pb2 import VariableSpec


def require_no_hooks(what: str, subject: Any, kinds: Sequence[str]) -> None:
    """Check that the program has added no hooks to an object.

    Args:
        what: What errors call it.
        subject: A tensor or an optimizer of torch.
        kinds: The attributes in which torch keeps its hooks.

    Raises:
        FailedPreconditionError: There are some.
    """
    # Each function asks for each parameter, and few have any.
    added = [hooks for kind in kinds if (hooks := getattr(subject, kind, None))]
    if not all(_is_our_own(hook) for hooks in added for hook in hooks.values()):
        raise FailedPreconditionError(
            f"{what} has hooks, which functions on worker servers would not call; do in the "
            "function what they do, for instance to gradients between backward() and step()"
        )


def _is_our_own(hook: Any) -> bool:
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).startswith("stratagem.")


class StrategyKind(SessionKind, ChangingKind):
    """The coordinator's strategy. Workers have one replica for each device of theirs.

    Where workers prove that they belong to the cluster, they do so by their own token. Of each
    server they know the run that the coordinator knows, so that a new worker sees as well that
    variables were lost, and its address.
    """

    name = "strategy"
    types = (ParameterServerStrategy,)

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        return require_own("a strategy", value, strategy)

    def label(self, subject: ParameterServerStrategy) -> str:
        return "the strategy"

    def essence(self, subject: ParameterServerStrategy, strategy: Strategy) -> Any:
        extended = subject.extended
        assert isinstance(extended, ParameterServerExtended)
        cluster = extended._membership.cluster.as_dict()
        return cluster, subject._settings.of_all_tasks(), servers_of(subject).identity.program

    def make(self, essence: Any, task: WorkerTask) -> AttachedStrategy:
        cluster, settings, program = essence
        resolver = SimpleClusterResolver(
            _joined_by(ClusterSpec(cluster), task), task_type="worker", task_id=task.index
        )
        made = AttachedStrategy(resolver, token=task.token, **settings)
        servers_of(made).act_for(program)
        return made

    def stamp(self, subject: ParameterServerStrategy) -> object:
        hosting = hosting_of(subject)
        return servers_of(subject).topology, hosting.seen, len(hosting.forgotten)

    def state(self, subject: ParameterServerStrategy) -> Mapping[str, Any]:
        servers = servers_of(subject)
        seen = hosting_of(subject).seen
        return {
            "runs": servers.runs,
            "addresses": servers.addresses,
            "seen": seen,
            "forgotten": tuple(hosting_of(subject).forgotten),
        }

    def update(self, made: AttachedStrategy, change: Change) -> None:
        if "seen" in change.state:
            hosting_of(made).outdated = True
        servers = servers_of(made)
        servers.move(change.state.get("addresses", servers.addresses))
        servers.expect(change.state.get("runs", {}))
        made.attached.forget(change.state.get("forgotten", ()))

    def refresh(self, made: AttachedStrategy) -> None:
        made.attached.refresh_new()

    def reached(self, made: AttachedStrategy) -> Mapping[int, bytes]:
        return servers_of(made).reached

    def close(self, made: AttachedStrategy) -> None:
        made.close()


class ExtendedKind(ObjectKind):
    """The `extended` of a strategy."""

    name = "extended"
    types: ClassVar[tuple[type, ...]] = (ParameterServerExtended,)

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        require_own("the extended of a strategy", value._container_strategy(), strategy)
        extended: StrategyExtended = strategy.extended
        return extended

    def label(self, subject: StrategyExtended) -> str:
        return "the strategy's extended"

    def essence(self, subject: StrategyExtended, strategy: Strategy) -> Any:
        return strategy

    def make(self, essence: Any, task: WorkerTask) -> object:
        return essence.extended


class ResolverKind(ObjectKind):
    """The resolver of the strategy. Others might have the secret of the cluster."""

    name = "resolver"
    types = (ClusterResolver,)

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        if strategy.cluster_resolver is not value:
            raise InvalidArgumentError(
                "a cluster resolver may have a secret, which does not travel; use "
                "strategy.cluster_resolver of the coordinator's strategy"
            )
        resolver: ClusterResolver = value
        return resolver

    def label(self, subject: ClusterResolver) -> str:
        return "the strategy's cluster_resolver"

    def essence(self, subject: ClusterResolver, strategy: Strategy) -> Any:
        return strategy

    def make(self, essence: Any, task: WorkerTask) -> ClusterResolver:
        resolver: ClusterResolver = essence.cluster_resolver
        return resolver


def servers_of(strategy: ParameterServerStrategy) -> ServerGroup:
    """Return the sessions of a strategy with parameter servers, here or on a worker."""
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended._store.servers


def hosting_of(strategy: ParameterServerStrategy) -> RemoteHosting:
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended._hosting


def _joined_by(cluster: ClusterSpec, task: WorkerTask) -> ClusterSpec:
    """Return a cluster with a worker that may have joined it since."""
    if not task.address:
        return cluster
    workers = dict(enumerate(cluster.job_tasks("worker")))
    known = {index: address for index, address in workers.items() if address}
    tasks: dict[str, Tasks] = {**cluster.as_dict()}
    return ClusterSpec({**tasks, "worker": {**known, task.index: task.address}})


def require_own(what: str, found: object, own: Strategy) -> object:
    """Return `own` if `found` is it; raise `InvalidArgumentError` otherwise."""
    if found is not own:
        raise InvalidArgumentError(
            f"{what} is of another strategy than the one whose workers these are, and "
            "they know nothing of it; use what was made in the scope of that one"
        )
    return own


class CoordinatorStub:
    """Stands for the coordinator, which is in the program alone.

    It may be there, as the attribute of an object whose method runs, and not be used.
    """

    def __getattr__(self, name: str) -> NoReturn:
        # Copying and pickling probe for dunders.
        if name.startswith("__"):
            raise AttributeError(name)
        raise FailedPreconditionError(
            f"a function on a worker has used ClusterCoordinator.{name}, but only the "
            "program schedules functions and waits for them; return a value, and let "
            "the program go on with it"
        )


_GRADIENT_HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"


class HostedKind(ChangingKind):
    """A parameter that the strategy hosts, and whether it is trained."""

    types = (Parameter,)
    settings = frozenset({"requires_grad"})

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        hosted = hosted_parameter(value)
        if hosted is not None:
            own = hosted.variable.distribute_strategy
            require_own(f"parameter {hosted.name!r}", own, strategy)
            require_existing(hosted.variable)
            require_no_hooks(f"parameter {hosted.name!r}", hosted.parameter, _GRADIENT_HOOKS)
            return hosted
        if is_lazy(value):
            raise FailedPreconditionError(
                "a lazy parameter has no shape yet; call its module once on the "
                "coordinator before functions use it"
            )
        return None

    def label(self, subject: HostedParameter) -> str:
        return f"parameter {subject.name!r}"

    def stamp(self, subject: HostedParameter) -> object:
        # None would say that nothing tells.
        return (subject.parameter.requires_grad,)

    def state(self, subject: HostedParameter) -> Mapping[str, Any]:
        return {"requires_grad": subject.parameter.requires_grad}

    def update(self, made: Any, change: Change) -> None:
        self.restore(made, change.state)

    def restore(self, made: Parameter, settings: Mapping[str, Any]) -> None:
        if made.requires_grad is not settings.get("requires_grad", made.requires_grad):
            made.requires_grad_(settings["requires_grad"])


class ParameterKind(HostedKind):
    """A parameter that the strategy hosts, a table too. Its value does not travel.

    Each replica of a worker has a leaf of its own for it, as under any strategy.
    """

    name = "parameter"

    def essence(self, subject: HostedParameter, strategy: Strategy) -> Any:
        variable = subject.variable
        readable = variable.reach.nbytes if isinstance(variable, TableVariable) else None
        specs = [part.spec.SerializeToString() for part in parts_of(variable)]
        shape = tuple(subject.parameter.shape)
        return strategy, subject.name, shape, specs, readable

    def make(self, essence: Any, task: WorkerTask) -> Parameter:
        strategy: AttachedStrategy
        strategy, name, shape, specs, readable = essence
        found = tuple(map(VariableSpec.FromString, specs))
        parts = ParameterParts(name, shape, found, readable)
        return strategy.attached.parameter(parts)


class VariableKind(ObjectKind):
    """A `Variable` on a server. Its value does not travel."""

    name = "variable"
    types = (RemoteVariable, AggregatingVariable, SplitVariable)

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        if isinstance(value, AggregatingVariable) and remote_of(value) is None:
            return None
        whole = own_variable(value, strategy)
        if isinstance(whole, SplitVariable):
            raise of_a_parameter(whole)
        require_existing(whole)
        return whole

    def label(self, subject: Variable) -> str:
        return f"variable {subject.name!r}"

    def essence(self, subject: Variable, strategy: Strategy) -> Any:
        remote = remote_of(subject)
        assert remote is not None
        return strategy, remote.spec.SerializeToString()

    def make(self, essence: Any, task: WorkerTask) -> Variable:
        strategy: AttachedStrategy
        strategy, spec = essence
        return strategy.attached.variable(VariableSpec.FromString(spec))


class ShardedVariableKind(ObjectKind):
    """A `ShardedVariable`. Its shards are variables."""

    name = "sharded variable"
    types = (ShardedVariable,)

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        return value if remote_of(value.variables[0]) is not None else None

    def label(self, subject: ShardedVariable) -> str:
        return f"sharded variable {subject.name!r}"

    def essence(self, subject: ShardedVariable, strategy: Strategy) -> Any:
        divided = subject.variables[0]._shard_of is not None
        return subject.name, subject.variables, divided

    def make(self, essence: Any, task: WorkerTask) -> ShardedVariable:
        name, shards, divided = essence
        if divided:
            return ShardedVariable.divided(name, shards)
        return ShardedVariable(shards, name)


def own_variable(value: Variable, strategy: Strategy) -> Variable:
    """Return the whole variable that one is, or is a component of.

    Raises:
        InvalidArgumentError: It is of another strategy.
    """
    require_own(f"variable {value.name!r}", value.distribute_strategy, strategy)
    return value if value.container is None else value.container


def require_existing(variable: Variable) -> None:
    """Check that servers have a variable; raise as `RemoteVariable.require_existing`."""
    for part in parts_of(variable):
        part.require_existing()


def of_a_parameter(variable: Variable) -> InvalidArgumentError:
    """Return the error for a variable that follows a parameter."""
    return InvalidArgumentError(
        f"variable {variable.name!r} is that of a module's parameter; use the parameter"
    )
