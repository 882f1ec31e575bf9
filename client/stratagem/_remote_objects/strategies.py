"""Strategies as workers have them, and what stands there for the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from stratagem._cluster.tasks import ClusterSpec, Tasks
from stratagem._parameter_server.attached import AttachedStrategy
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.remote_hosting import RemoteHosting
from stratagem._parameter_server.strategy import ParameterServerStrategy
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
        return cluster, subject._settings.of_all_tasks(), _servers(subject).identity.program

    def make(self, essence: Any, task: WorkerTask) -> AttachedStrategy:
        cluster, settings, program = essence
        resolver = SimpleClusterResolver(
            _joined_by(ClusterSpec(cluster), task), task_type="worker", task_id=task.index
        )
        made = AttachedStrategy(resolver, token=task.token, **settings)
        _servers(made).act_for(program)
        return made

    def stamp(self, subject: ParameterServerStrategy) -> object:
        hosting = _hosting(subject)
        return _servers(subject).topology, hosting.seen, len(hosting.forgotten)

    def state(self, subject: ParameterServerStrategy) -> Mapping[str, Any]:
        servers = _servers(subject)
        seen = _hosting(subject).seen
        return {
            "runs": servers.runs,
            "addresses": servers.addresses,
            "seen": seen,
            "forgotten": tuple(_hosting(subject).forgotten),
        }

    def update(self, made: AttachedStrategy, change: Change) -> None:
        if "seen" in change.state:
            _hosting(made).outdated = True
        servers = _servers(made)
        servers.move(change.state.get("addresses", servers.addresses))
        servers.expect(change.state.get("runs", {}))
        made.attached.forget(change.state.get("forgotten", ()))

    def refresh(self, made: AttachedStrategy) -> None:
        made.attached.refresh_new()

    def reached(self, made: AttachedStrategy) -> Mapping[int, bytes]:
        return _servers(made).reached

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


def _servers(strategy: ParameterServerStrategy) -> ServerGroup:
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended._store.servers


def _hosting(strategy: ParameterServerStrategy) -> RemoteHosting:
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
