"""Modules and optimizers whose variables are on servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem._cluster.tasks import Membership
from stratagem._core.protocols import LocalStepsTold, Seen
from stratagem._core.variables import Variable
from stratagem._gradients import Compressor, GradientOverlap, OptimizerStep
from stratagem._hosting.adoption import Adoption
from stratagem._hosting.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._hosting.hosting import Hosting, MadeElsewhere, Slots
from stratagem._hosting.local_steps import LocalSteps, OwnSteps
from stratagem._hosting.optimizer import DistributedOptimizer
from stratagem._parameter_server.checkpoints.checkpoints import ClusterCheckpoints
from stratagem._parameter_server.hosting.creation import RemoteVariables, placed_parameter
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.inner_states import InnerStates
from stratagem._parameter_server.loaded_values import (
    IN_FUNCTION,
    IN_REPLICA,
    LoadedValues,
    drop_writes,
    refused,
    written_in,
)
from stratagem._parameter_server.remote_optimizers import RemoteOptimizers
from stratagem._parameter_server.tables.lookahead import TableLookahead
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.recording import give_memory
from stratagem._parameter_server.tables.tables import META_ABOVE, Tables
from stratagem._parameter_server.tables.variable import (
    TableVariable,
    require_no_table,
    require_whole_state,
)
from stratagem._parameter_server.variables.variable import RemoteVariable, SplitVariable, parts_of
from stratagem._strategies.extended import StrategyExtended
from stratagem.consistency import Consistency
from stratagem_proto.errors import ContextError, FailedPreconditionError, InvalidArgumentError
from stratagem_proto.programs.traced_rules import require_whole

if TYPE_CHECKING:
    from stratagem._tracing.optimizer_rules import VariableRule

Result = TypeVar("Result")


class _Own(threading.local):
    trains = False


class TrainingThreads:
    """The threads that compute gradients, whose parameters nobody else may change.

    What a trainer computes with is refreshed by itself alone. Threads that only look have what it
    has, while it runs.
    """

    def __init__(self) -> None:
        self._own = _Own()
        self._lock = threading.Lock()
        self._inside = 0
        self._refreshing = threading.Lock()

    def add_this(self) -> None:
        """Take this thread for a trainer from now on."""
        self._own.trains = True

    def run(self, refresh: Callable[[], None], call: Callable[[], Result]) -> Result:
        """Return what a run of this thread returns, which begins with fresh values.

        Nothing is refreshed while another thread trains.
        """
        if not self._own.trains:
            with self._refreshing:
                if not self._inside:
                    refresh()
            return call()
        with self._lock:
            others, self._inside = self._inside, self._inside + 1
        try:
            if not others:
                with self._refreshing:
                    refresh()
            return call()
        finally:
            with self._lock:
                self._inside -= 1


class RemoteHosting(Hosting):
    """Makes variables on servers of parameters, and has the servers step optimizers.

    Attributes:
        loaded: What this program has loaded and the servers may not have yet.
        checkpoints: The strategy's checkpoints.
        lookahead: Asks for rows of tables before the runs that look them up.
        threads: The threads that take steps.
        seen: How often the program of a coordinator has looked at what functions have made of the
            parameters, or written them. Functions that it schedules later have to see that, too.
        outdated: On a worker server, whether they have not seen that yet.
        forgotten: The places, in the order of creation, of what was forgotten. Worker servers
            forget that, too.
    """

    def __init__(
        self,
        extended: StrategyExtended,
        devices: Sequence[torch.device],
        membership: Membership,
        variables: RemoteVariables,
        elsewhere: MadeElsewhere | None = None,
    ) -> None:
        super().__init__(extended, devices, elsewhere)
        store, buffers = variables.store, self.adopter.buffers
        self._membership, self._trains = membership, membership.trains
        self._variables = variables
        self._store = store
        self.loaded = LoadedValues(store, self.parameters, membership)
        self._tables = Tables(store, self.loaded, variables.partitioning, self.parameters)
        self._steps = RemoteOptimizers(store, variables)
        self.lookahead = TableLookahead(store, len(devices))
        self.checkpoints = ClusterCheckpoints(
            membership, store, variables.established, buffers, extended._names
        )
        self.threads = TrainingThreads()
        # Copies that lone steps leave as they were, though other workers may train them.
        self._untouched: list[RemoteVariable] = []
        # Whether workers train some variables by themselves.
        self._lends = False
        self._inner_states = InnerStates(store, membership)
        self.seen = 0
        self.outdated = False
        self.forgotten: list[int] = []

    # Modules.

    def watching(
        self, name: str | None, meta_above: float = META_ABOVE
    ) -> AbstractContextManager[None]:
        """As for `Hosting`; parameters of more than `meta_above` bytes are tables."""
        return self._tables.scope(super().watching(name), meta_above)

    def prepare(self, adoption: Adoption) -> None:
        self._tables.prepare(adoption)

    def host(self, adoptions: Sequence[Adoption]) -> None:
        variables = [self._placed(adoption) for adoption in adoptions]
        self.establish([part for one in variables for part in parts_of(one)])
        for variable, adoption in zip(variables, adoptions, strict=True):
            self.show(variable, adoption)

    def _placed(self, adoption: Adoption) -> RemoteVariable | SplitVariable:
        creation = self._variables.creation
        if isinstance(adoption.parameter, TableParameter):
            return self._tables.placed(creation, adoption)
        return placed_parameter(creation, self._variables.partitioning, adoption)

    def establish(self, variables: Sequence[RemoteVariable]) -> None:
        """Make variables exist, with their values of a checkpoint if it has some."""
        kept = self._variables.establish(variables)
        self.checkpoints.created(variables, kept)

    def show(self, variable: RemoteVariable | SplitVariable, adoption: Adoption) -> None:
        """Let modules see a variable by the parameter that it was made of."""
        variable._join(self._extended._container_strategy())
        hosted = self._hosted(variable, adoption)
        for part in parts_of(variable):
            part.show_in(hosted)

    def _hosted(
        self, variable: RemoteVariable | SplitVariable, adoption: Adoption
    ) -> HostedParameter:
        if isinstance(variable, TableVariable):
            return self._tables.host(variable, adoption)
        return self.parameters.add(adoption.parameter, variable, adoption.owners)

    def host_buffers(self, roots: Sequence[nn.Module]) -> None:
        give_memory(part for root in roots for part in root.modules())
        self.checkpoints.buffers_hosted()
        super().host_buffers(roots)

    @property
    def membership(self) -> Membership:
        """Which task of the cluster this process is."""
        return self._membership

    @property
    def store(self) -> RemoteStore:
        """The variables on the servers."""
        return self._store

    @property
    def established(self) -> Sequence[RemoteVariable]:
        """The variables that exist."""
        return self._variables.established

    def forget(self, parts: Sequence[RemoteVariable], names: Collection[str]) -> None:
        """Know nothing of variables any more, nor of optimizers that the program has dropped."""
        self._variables.creation.forget(parts)
        self._tables.remove(names)
        self.checkpoints.forget(names)
        self._untouched = []
        self.forgotten += [part.place.ordinal for part in parts]

    def forget_optimizers(self) -> None:
        """Know nothing of optimizers any more that nobody can step."""
        living = self.optimizers_in_use
        self._steps.keep({one.name for one in living if isinstance(one, DistributedOptimizer)})

    # Runs.

    def unshared_writes(self) -> Sequence[str]:
        if self._membership.num_training_tasks == 1:
            return ()
        return [hosted.name for hosted in written_in(self._store, self.parameters)]

    @property
    def is_shared(self) -> bool:
        return self.elsewhere is None

    @property
    def trains_in_place(self) -> bool:
        return False

    def before_replicas(self, training: bool = False) -> None:
        """As for `Hosting`; with `training`, gradients will be computed."""
        self._before_use()
        variables = self._variables.established
        if self._lends:
            variables = [one for one in variables if not one.is_lent]
            for optimizer in self.own_steps():
                optimizer._follow()
        self._store.refresh(variables, training)

    def _before_use(self) -> None:
        super().before_replicas()
        self._variables.creation.before_use()
        self.checkpoints.before_use()
        self._agree()

    def before_cut(self) -> None:
        """Have servers hold what this program has made, written and stepped.

        A step that waits for others counts once it is read after; other values need not come here.
        """
        self.keep()
        if self._store.step_tracker.is_free():
            self._before_use()
        else:
            self.before_replicas()

    def _agree(self) -> None:
        if self.elsewhere is None:
            self.loaded.agree()
        else:
            self._refuse_writes(IN_FUNCTION)

    def _refuse_writes(self, where: str, has_failed: bool = False) -> None:
        """Drop what was written to parameters, and refuse it unless something else is raised."""
        written = self.drop_writes()
        if written and not has_failed:
            raise refused(written, where)

    def drop_writes(self) -> Sequence[HostedParameter]:
        """Have the parameters that the program has written get their variables' values back."""
        written = drop_writes(self._store, self.parameters)
        self.outdated = self.outdated or bool(written)
        return written

    def in_function(self) -> AbstractContextManager[None]:
        return _Function(self)

    def begin_function(self) -> None:
        """Bring parameters up to date if the program knows newer values than there are here."""
        if self.outdated:
            self._refresh_parameters()
            self.outdated = False

    def end_function(self, failed: bool) -> None:
        """Refuse parameters that a function has written.

        Of one that failed its own error is raised. No later function is told of its writes.
        """
        self._refuse_writes(IN_FUNCTION, failed)

    def refresh_parameters(self) -> None:
        """Bring the parameters of modules up to date, and nothing else."""
        if len(self.parameters):
            self.loaded.agree()
            self._refresh_parameters()

    def _refresh_parameters(self) -> None:
        parts = [parts_of(hosted.variable) for hosted in self.parameters]
        self._store.refresh(chain.from_iterable(parts))

    def step_outside_of_runs(self, step: Callable[[], None]) -> None:
        super().step_outside_of_runs(step)
        # Inside, the next run brings them up to date.
        if self._untouched:
            self._store.refresh(self._untouched, training=True)

    def before_lone_step(self) -> None:
        self._before_use()
        self._store.pusher.refresh(None)

    def begin_run(self) -> None:
        """Give tables the rows that were asked for ahead of a run of the program's."""
        # Who wants no gradients wants exact values, as of now.
        if not torch.is_grad_enabled():
            return
        try:
            self.lookahead.hand_over()
        except BaseException:
            self._tables.forget()
            raise

    def run(self, call: Callable[[], Result]) -> Result:
        """Return what the replicas return; refuse parameters that they have written."""
        # A checkpoint has all that this sends, or nothing of it.
        self._steps.begin_run()
        steps = self._store.servers.steps
        is_entered = steps.enter()
        try:
            result = call()
            self.checkpoints.states.ran()
        finally:
            if is_entered:
                steps.leave()
            self._tables.forget()
        self._refuse_writes(IN_REPLICA)
        return result

    # Optimizers.

    def name_optimizer(self, class_name: str, consistency: Consistency | None = None) -> str:
        name = super().name_optimizer(class_name)
        self._steps.add(name, consistency)
        if self.elsewhere is None:
            self.threads.add_this()
        return name

    def describe_optimizer(self, name: str, optimizer: Optimizer, trained: Iterable[str]) -> None:
        self._store.step_tracker.describe(name, optimizer, trained)

    def apply_gradients(self, step: OptimizerStep) -> None:
        if not self._trains:
            self._membership.require_trainer()
        self.threads.add_this()
        # What the step makes would take the place of what was written.
        self._refuse_writes(IN_REPLICA)
        if self.checkpoints.counter.has_contributed(step.optimizer):
            self._tables.forget(step)
            self.checkpoints.states.ran()
            self._refresh_parameters()
            return
        is_fresh = self._steps.apply(step, self.lookahead.behind)
        self._tables.forget(step)
        self.checkpoints.states.ran()
        self._untouched = self._steps.untouched_copies(step) if is_fresh else []
        if not is_fresh:
            self._steps.await_values(step)

    def lend(
        self, parameters: Sequence[nn.Parameter], what: str, is_kept: bool = False
    ) -> list[nn.Parameter]:
        self._require_one_replica(what)
        counter = self.checkpoints.counter
        if counter.is_resumed and not is_kept:
            raise FailedPreconditionError(
                f"{what} is made after resume(), which could not give it what it had in the run; "
                "make the model and its optimizers first"
            )
        found = [hosted_parameter(one) for one in parameters]
        require_no_table(one.variable for one in found if one is not None)
        # What the program has loaded goes to the servers while it is theirs.
        self.refresh_parameters()
        self._lends, counter.has_local = True, counter.has_local or not is_kept
        return [self._lent(one) for one in found if one is not None]

    def own_steps(self) -> list[OwnSteps]:
        """Return the optimizers whose steps each worker takes by itself."""
        return [one for one in self.optimizers_in_use if isinstance(one, OwnSteps)]

    def keep(self) -> None:
        """Have servers hold what this worker has trained by itself, if it is the one to say so."""
        if self._membership.creates:
            for optimizer in self.own_steps():
                optimizer._keep()

    def require_none_kept(self, what: str) -> None:
        """Raise FailedPreconditionError if workers train by themselves what is saved with them."""
        if any(one._is_kept for one in self.own_steps()):
            raise FailedPreconditionError(
                f"{what} does not go together with a HybridOptimizer, whose dense parameters are "
                "on the servers as they were saved last, and are stepped by all workers at once; "
                "give one all dense parameters, call publish() between steps, or have the servers "
                "step all by a DistributedOptimizer"
            )

    def meet(self, meet: Callable[[], object]) -> None:
        """Meet the other workers, by a call that waits for them."""
        kept = [one for one in self.own_steps() if one._is_kept]
        if kept:
            kept[0]._meet(meet)
        else:
            meet()

    def part_from_workers(self) -> None:
        """Let others go on that all-reduce with this worker, which ends."""
        for optimizer in self.own_steps():
            optimizer._part()

    def require_countable(self, resumes: bool) -> None:
        """Check that steps can be counted so that each counts once when they are taken again.

        Args:
            resumes: Whether optimizers are to go on with their state, too.

        Raises:
            FailedPreconditionError: Local steps cannot.
        """
        optimizers = [one for one in self.optimizers_in_use if isinstance(one, LocalSteps)]
        why = [one._why_not_counted for one in optimizers if one._why_not_counted]
        if len(optimizers) > 1:
            why.append("is there more than once, each with shares of its own")
        if why:
            raise FailedPreconditionError(
                f"LocalSteps {why[0]}: a program that counts its steps by strategy.steps() and is "
                "started again would take some twice or leave them out. Take one LocalSteps with "
                "`every` and a single fragment; or count by range(), and begin it with the `extra` "
                "of strategy.restore()"
            )
        if resumes and not all(one._keeps_state for one in optimizers):
            raise FailedPreconditionError(
                "LocalSteps keeps nothing of its optimizer's state on the servers, so that who is "
                "started again would go on without it; give it keep_state=1, or a larger number to "
                "send less, and a state that is some shares old"
            )

    @property
    def local_steps(self) -> LocalStepsTold:
        """What is told of local steps."""
        return self.checkpoints.counter

    def kept_state(
        self, optimizer: str, shapes: Mapping[nn.Parameter, Slots], compressor: Compressor
    ) -> Sequence[Slots]:
        return self._inner_states.read(optimizer, _by_variable(shapes), compressor)

    def keep_state(
        self, optimizer: str, states: Mapping[nn.Parameter, Slots], compressor: Compressor
    ) -> None:
        self._inner_states.write(optimizer, _by_variable(states), compressor)

    def _lent(self, hosted: HostedParameter) -> nn.Parameter:
        self.parameters.remove(hosted)
        shared = nn.Parameter(hosted.parameter.detach().clone())
        instead = self.parameters.add(shared, hosted.variable, ())
        for part in parts_of(hosted.variable):
            part.show_in(instead)
            part.is_lent = True
        return shared

    def workers_in_turn(self, consistency: Consistency | None) -> int:
        tracker = self._store.step_tracker
        together = (consistency or tracker.declared)._closes_steps
        return 1 if together else tracker.num_workers

    def versions_here(
        self, shared: Sequence[nn.Parameter], consistency: Consistency | None
    ) -> Seen:
        if not (consistency or self._store.step_tracker.declared)._is_free:
            return {}
        return {id(part): part.copy_version for part in self._parts_behind(shared)}

    def bring(self, shared: Sequence[nn.Parameter], seen: Seen | None = None) -> None:
        # Where workers share one by one, most of what a step has brought was changed since by
        # others, and would come again.
        parts = self._parts_behind(shared)
        missing = [part for part in parts if not seen or not part.is_new(seen[id(part)])]
        if missing:
            self._store.refresh(missing)

    def is_behind(self, shared: Sequence[nn.Parameter]) -> bool:
        return any([part.is_behind for part in self._parts_behind(shared)])

    def _parts_behind(self, shared: Sequence[nn.Parameter]) -> list[RemoteVariable]:
        found = [hosted_parameter(one) for one in shared]
        return [part for one in found if one is not None for part in parts_of(one.variable)]

    def overlapped_push(self, optimizer: str, compressor: Compressor) -> GradientOverlap:
        self._require_one_replica("overlap=True")
        return self._steps.overlap(optimizer, compressor)

    def _require_one_replica(self, what: str) -> None:
        if len(self.devices) > 1:
            raise InvalidArgumentError(
                f"{what} needs one replica in each worker, because several reduce "
                f"their gradients first; here are {len(self.devices)}. Leave it "
                "out, or set num_replicas_per_worker=1"
            )

    def require_steppable(self, variable: Variable, rule: VariableRule, optimizer: str) -> None:
        if isinstance(variable, TableVariable):
            raise InvalidArgumentError(
                f"{optimizer} is none of the optimizers that step the rows of tables, such as "
                f"{variable.name!r}; give the table an optimizer of torch.optim of its own",
                variable=variable.name,
            )
        if isinstance(variable, SplitVariable):
            require_whole(rule.message, variable.name, optimizer)

    def rejected_steps(self, optimizer: str) -> int:
        return self._steps.rejected(optimizer)

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots]:
        # What was loaded here last is to be seen, or refused.
        self._agree()
        return self._steps.slots(optimizer, variables)

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        if self._membership.creates:
            self._steps.set_slots(optimizer, slots)
            self.loaded.announce_slots(optimizer, slots)
        elif self.elsewhere is not None:
            raise ContextError(f"the state of optimizer {optimizer!r} was loaded in {IN_FUNCTION}")
        else:
            require_whole_state(slots)
            self.loaded.hold_slots(optimizer, slots, self._steps.slots)


class _Function(AbstractContextManager[None]):
    """The context of a scheduled function, whose error it leaves as it is."""

    def __init__(self, hosting: RemoteHosting) -> None:
        self._hosting = hosting

    def __enter__(self) -> None:
        self._hosting.begin_function()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._hosting.end_function(failed=kind is not None)


def _by_variable(states: Mapping[nn.Parameter, Slots]) -> dict[Variable, Slots]:
    found = [(hosted_parameter(one), state) for one, state in states.items()]
    return {hosted.variable: state for hosted, state in found if hosted is not None}
