"""Modules and optimizers that a strategy hosts, here or for another program."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch import distributed, nn
from torch.optim import Optimizer

from stratagem._core.contexts import cross_replica, entered
from stratagem._core.protocols import LocalStepsTold, Seen
from stratagem._core.variables import Variable
from stratagem._gradients import Compressor, GradientOverlap, OptimizerStep
from stratagem._hosting.adoption import Adoption, ModuleAdopter, keep_fresh
from stratagem._hosting.hosted_parameter import hosted_parameter
from stratagem._hosting.other_steps import (
    DistributedSteps,
    OpenScope,
    refuse_other_steps,
    watch_plain_optimizers,
)
from stratagem._hosting.replica_views import BufferRegistry, ParameterRegistry
from stratagem._strategies.extended import StrategyExtended
from stratagem_proto.errors import InternalError, InvalidArgumentError, UnimplementedError
from stratagem_proto.protocol import check_name

if TYPE_CHECKING:
    from stratagem._checkpoints.restoring import RestoreStatus
    from stratagem._tracing.optimizer_rules import VariableRule
    from stratagem.consistency import Consistency


def refuse_synchronised_norms(roots: Sequence[nn.Module], replicas: int) -> None:
    """Refuse `nn.SyncBatchNorm` where several replicas are in sync.

    It asks torch's default process group for the other replicas. Without one it says nothing, and
    normalises by its own replica's part of the batch. A group that the program has made is left to
    it.

    Args:
        roots: The modules.
        replicas: How many replicas are in sync.

    Raises:
        UnimplementedError: There is one; says where.
    """
    if replicas == 1 or (distributed.is_available() and distributed.is_initialized()):
        return
    for root in roots:
        for path, module in root.named_modules():
            if not isinstance(module, nn.SyncBatchNorm):
                continue
            place = f"{type(root).__name__}.{path}" if path else type(root).__name__
            raise UnimplementedError(
                f"{place} is an nn.SyncBatchNorm, which needs a process group of torch.distributed "
                "to normalise by the batches of all replicas, and there is none: each replica "
                "would normalise by its own. Use nn.BatchNorm1d to 3d, which do that too, and of "
                'which ParameterServerStrategy(buffers="mean") averages the running statistics; or '
                "nn.GroupNorm or nn.LayerNorm, which need no other replicas"
            )


class MadeElsewhere:
    """Says that functions of a worker server make nothing that a strategy hosts.

    What they use comes from the program that sends them.

    Args:
        place: The name of this worker in errors.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._optimizer: str | None = None

    @contextmanager
    def naming(self, optimizer: str) -> Iterator[None]:
        """Give the next optimizer the name that it has where it was made."""
        self._optimizer = optimizer
        try:
            yield
        finally:
            self._optimizer = None

    def optimizer_name(self, class_name: str) -> str:
        """Return what `naming` says.

        Raises:
            InvalidArgumentError: A function makes the optimizer.
        """
        if self._optimizer is None:
            raise self.refusal(f"an optimizer, {class_name}")
        return self._optimizer

    def refusal(self, what: str) -> InvalidArgumentError:
        """Return the error of a function that makes something."""
        return InvalidArgumentError(
            f"{what}, was made under the strategy in a function that runs on "
            f"{self._place}, where each call would make another one; make it in the "
            "program that sends the function, inside `with strategy.scope():`, and use "
            "it in the function",
            task=self._place,
        )


Slots = Mapping[str, torch.Tensor]
"""The state of an optimizer for one variable, by torch's keys."""


class LivingHostings:
    """The hostings of this process that were used and still live."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: WeakSet[Hosting] = WeakSet()

    def add(self, hosting: Hosting) -> None:
        """Note that a hosting was used."""
        with self._lock:
            if hosting in self._found:
                return
            self._found.add(hosting)
        watch_plain_optimizers(self.variable_seen_as)

    def variable_seen_as(self, tensor: torch.Tensor) -> Variable | None:
        """Return the variable of any of them whose `value()` is this tensor."""
        found = (one.variable_seen_as(tensor) for one in self)
        return next((variable for variable in found if variable is not None), None)

    def __iter__(self) -> Iterator[Hosting]:
        with self._lock:
            return iter(list(self._found))


class _OptimizersInUse(WeakSet[DistributedSteps]):
    def __deepcopy__(self, memo: dict[int, object]) -> _OptimizersInUse:
        # Optimizers stay with the strategy that they were made for.
        return _OptimizersInUse()


class Hosting(ABC):
    """Makes variables of the parameters of modules, and steps optimizers.

    A strategy's `extended` owns one. A subclass says where the variables are. Its methods are
    called in this order:

    - `host(adoptions)`: when a scope closes, or earlier if its modules are used.
    - `before_replicas()`: before replicas run. It calls the method of this class,
      carries local writes to the variables (`parameters.written_locally()`), and newer
      values of the variables into the parameters (`HostedParameter.write`).
    - `after_replicas()`: after they have run.
    - `apply_gradients(step)`: when the replicas meet in an optimizer's step.
    - `slots`, `set_slots`: for `state_dict` and `load_state_dict`.

    Buffers, such as the statistics of `nn.BatchNorm1d`, are not hosted: each replica has its own,
    and only those of each process's first replica are kept (`BufferRegistry`).

    Args:
        extended: The strategy's `extended`.
        devices: The device of each replica of this process.
        elsewhere: On a worker server, whose functions make nothing; None where the program itself
            builds modules and optimizers.

    Attributes:
        devices: The device of each replica of this process.
        parameters: The hosted parameters.
        buffers: The buffers of hosted modules.
        adopter: Finds the modules.
        optimizers_in_use: The optimizers that may step the parameters.
    """

    def __init__(
        self,
        extended: StrategyExtended,
        devices: Sequence[torch.device],
        elsewhere: MadeElsewhere | None = None,
    ) -> None:
        self.devices: tuple[torch.device, ...] = tuple(devices)
        self.parameters: ParameterRegistry = ParameterRegistry(self.devices)
        self.buffers: BufferRegistry = BufferRegistry(self.devices)
        self.adopter: ModuleAdopter = ModuleAdopter(
            extended._names,
            self.parameters,
            self._host_across_replicas,
            self._host_own_buffers,
            self.prepare,
        )
        self.elsewhere = elsewhere
        self._extended = extended
        self.optimizers_in_use: WeakSet[DistributedSteps] = _OptimizersInUse()
        self._optimizers: Counter[str] = Counter()

    @property
    def extended(self) -> StrategyExtended:
        """The `extended` that owns this."""
        return self._extended

    def watching(self, name: str | None) -> AbstractContextManager[object]:
        """Return a context that adopts the modules that are built in it.

        Args:
            name: A prefix of the names of their parameters.
        """
        living_hostings.add(self)
        if not self.is_shared:
            return self.adopter.watching(name)
        watch_plain_optimizers()
        strategy = type(self._extended._container_strategy()).__name__
        return self.adopter.watching(name, OpenScope(strategy, self.adopter.adopt))

    def before_replicas(self) -> None:
        """Prepare parameters and buffers for replicas to run."""
        living_hostings.add(self)
        self.adopter.adopt()
        self._extended._names.used()
        if len(self.devices) > 1:
            self.buffers.follow_first()
            self.parameters.carry_outside_changes()

    def after_replicas(self) -> None:
        """Note how replicas have left parameters."""
        if len(self.devices) > 1:
            self.parameters.note_replicas_work()

    def ran(self) -> None:  # noqa: B027 - few have to
        """Note that a `run` has ended without an error."""

    def unshared_writes(self) -> Sequence[str]:
        """Return the names of parameters that the program wrote and other workers do not know."""
        return ()

    @property
    def is_shared(self) -> bool:
        """Whether the parameters of this process are copies of what others have, too."""
        return False

    @property
    def trains_in_place(self) -> bool:
        """Whether an optimizer of torch may step the parameters themselves."""
        return self._extended._num_replicas_in_sync == 1

    def step_outside_of_runs(self, step: Callable[[], None]) -> None:
        """Take an optimizer's step for a program that does not call `run`.

        Args:
            step: The function to call in the only replica of this process.
        """
        with entered(self._extended._container_strategy()):
            self.before_lone_step()
            self._extended._call_for_each_replica(step, (), {})

    def in_function(self) -> AbstractContextManager[None]:
        """Return the context of a function that a coordinator has scheduled here."""
        return nullcontext()

    def before_lone_step(self) -> None:
        """Carry the user's writes to the variables, and leave the parameters alone.

        A graph that is still to be differentiated may need them as they are.
        """
        self._extended._before_replicas()

    def host_buffers(self, roots: Sequence[nn.Module]) -> None:
        """Take care of the buffers of modules and their parts."""
        self.buffers.add(part for root in roots for part in root.modules())

    def _host_own_buffers(self, roots: Sequence[nn.Module]) -> None:
        refuse_synchronised_norms(roots, self._extended._num_replicas_in_sync)
        self.host_buffers(roots)

    def prepare(self, adoption: Adoption) -> None:  # noqa: B027 - few have to
        """Replace a parameter that is to be adopted by one of another kind."""

    def created(self, variable: Variable) -> None:  # noqa: B027 - few have to
        """Note a variable that the program has created in the scope."""

    def variable_seen_as(self, tensor: torch.Tensor) -> Variable | None:
        """Return the variable whose `value()` is this tensor, in any replica."""
        for owner in self._extended._names.owners():
            if isinstance(owner, Variable) and owner._is_seen_as(tensor):
                return owner
        return None

    def _host_across_replicas(self, adoptions: Sequence[Adoption]) -> None:
        if self.elsewhere is not None:
            what = f"a module with parameters, {adoptions[0].module_path}"
            raise self.elsewhere.refusal(what)
        for adoption in adoptions:
            # Servers refuse other names, and a program is to run under every strategy.
            check_name(adoption.name)
        # A lazy module may turn up in the midst of a replica's forward.
        with cross_replica(self._extended._container_strategy()):
            self.host(adoptions)
        if self.is_shared:
            for adoption in adoptions:
                hosted = hosted_parameter(adoption.parameter)
                assert hosted is not None
                refuse_other_steps(hosted)

    def name_optimizer(self, class_name: str, consistency: Consistency | None = None) -> str:
        """Return a name for the next optimizer of a class: "Adam", then "Adam_1".

        Names are never used again: the slot variables of an optimizer outlive it.

        Args:
            class_name: The class.
            consistency: The consistency of its steps; None for that of the strategy.

        Raises:
            InvalidArgumentError: The strategy has but one consistency, or a function of a worker
                server makes the optimizer.
        """
        if self.elsewhere is not None:
            return self.elsewhere.optimizer_name(class_name)
        if consistency is not None:
            raise InvalidArgumentError(
                f"{class_name} is given the consistency {consistency}, but under "
                f"{type(self._extended._container_strategy()).__name__} all replicas "
                "are always in sync; leave it out, or use ParameterServerStrategy"
            )
        number = self._optimizers[class_name]
        self._optimizers[class_name] += 1
        return f"{class_name}_{number}" if number else class_name

    def describe_optimizer(  # noqa: B027 - nobody else may be there
        self, name: str, optimizer: Optimizer, trained: Iterable[str]
    ) -> None:
        """Note what an optimizer was made with, and the names of the variables that it steps.

        Others who step them together with this program are to have made the same.
        """

    def overlapped_push(self, optimizer: str, compressor: Compressor) -> GradientOverlap | None:
        """Return what pushes an optimizer's gradients during backward; None if nothing.

        Raises:
            InvalidArgumentError: The gradients have to be reduced first.
        """
        return None

    def lend(
        self, parameters: Sequence[nn.Parameter], what: str, is_kept: bool = False
    ) -> list[nn.Parameter]:
        """Leave hosted parameters to the program, and return what is hosted in place of each.

        `what` is the optimizer that steps them, whose steps may be kept, as `OwnSteps` says.

        Raises:
            InvalidArgumentError: They cannot be left to it.
        """
        raise InvalidArgumentError(
            f"{what} needs ParameterServerStrategy, whose servers keep what workers share; "
            f"under {type(self._extended._container_strategy()).__name__} wrap the optimizer by "
            "stratagem.DistributedOptimizer"
        )

    def workers_in_turn(self, consistency: Consistency | None) -> int:
        """Return how many workers' shares are applied one by one; 1 if they are together."""
        return 1

    def versions_here(
        self, shared: Sequence[nn.Parameter], consistency: Consistency | None
    ) -> Seen:
        """Return what is here of lent parameters, for `bring` behind a step with that consistency.

        It is empty unless such a step brings its result.
        """
        return {}

    def bring(  # noqa: B027 - for who lends
        self, shared: Sequence[nn.Parameter], seen: Seen | None = None
    ) -> None:
        """Bring what is hosted in place of lent parameters up to date.

        Args:
            shared: What is hosted.
            seen: The `versions_here` before a step, whose result is new enough.
        """

    def is_behind(self, shared: Sequence[nn.Parameter]) -> bool:
        """Whether this process has had values of lent parameters replaced."""
        return False

    @property
    def local_steps(self) -> LocalStepsTold:
        """What is told of local steps."""
        return LocalStepsTold()

    def kept_state(
        self, optimizer: str, shapes: Mapping[nn.Parameter, Slots], compressor: Compressor
    ) -> Sequence[Slots]:
        """Return the state of this worker's own optimizer that `keep_state` has kept last.

        Args:
            optimizer: The outer optimizer.
            shapes: By what is hosted in place of lent parameters, what there will be in a state.
                The chief's call makes room for it on servers.
            compressor: Goes on with the residuals that were kept.
        """
        return [{} for _ in shapes]

    def keep_state(  # noqa: B027 - for who lends
        self, optimizer: str, states: Mapping[nn.Parameter, Slots], compressor: Compressor
    ) -> None:
        """Keep the state of this worker's own optimizer for checkpoints.

        Args:
            optimizer: The outer optimizer.
            states: Tensors on the CPU, by what is hosted in place of lent parameters.
            compressor: Of what it shares, whose residuals are kept, too.
        """

    def require_steppable(self, variable: Variable, rule: VariableRule, optimizer: str) -> None:
        """Check whether a variable can be stepped by a traced rule.

        Raises:
            InvalidArgumentError: It cannot.
        """
        raise InvalidArgumentError(
            f"{type(self._extended._container_strategy()).__name__} steps variables by the "
            f"optimizers of torch.optim that are listed in docs/guide/optimizers.md, and "
            f"{optimizer} is none of them; use ParameterServerStrategy, or one of those"
        )

    def rejected_steps(self, optimizer: str) -> int:
        """Return how many steps were dropped elsewhere, for gradients not finite.

        Most strategies drop such steps in this process.
        """
        return 0

    @abstractmethod
    def host(self, adoptions: Sequence[Adoption]) -> None:
        """Make variables of parameters.

        Called in cross-replica context, possibly while a replica waits in the forward of a lazy
        module. Once this returns, each parameter is in `parameters` and equal to its variable.

        Args:
            adoptions: Parameters, with names that are unique and recorded.
        """

    @abstractmethod
    def apply_gradients(self, step: OptimizerStep) -> None:
        """Carry out a step of an optimizer.

        Called in cross-replica context, once for all replicas of this process, also if none of them
        has a gradient. The gradients are the `.grad` of the
        leaves: they may be read after this returns, and must not be changed.
        """

    @abstractmethod
    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots]:
        """Return the optimizer's state for each variable.

        It is empty where there is none yet. The tensors are on the CPU, or where the optimizer
        keeps them, and belong to the caller.
        """

    @abstractmethod
    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        """Replace the optimizer's state for variables; {} is none at all."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the content of a checkpoint, by name."""
        raise self._extended._no_checkpoints()

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool) -> RestoreStatus:
        """Load a checkpoint, also into what is made later."""
        raise self._extended._no_checkpoints()


def hosting_of(extended: object) -> Hosting | None:
    """Return what hosts modules for a strategy; None if nothing does."""
    found = getattr(extended, "_hosting", None)
    return found if isinstance(found, Hosting) else None


living_hostings = LivingHostings()


class Attached:
    """What the program that sends functions has made, as these use it.

    Args:
        hosting: The strategy's, which was told that the program is elsewhere.
    """

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting

    def module(self, module: nn.Module) -> None:
        """Let the replicas see leaves and buffers of their own in a module.

        As where it was made, its `state_dict()` has the newest values.
        """
        for key, parameter in module._parameters.items():
            hosted = None if parameter is None else hosted_parameter(parameter)
            if hosted is not None:
                self._hosting.parameters.tie(hosted, [(module, key)])
        self._hosting.buffers.add([module])
        keep_fresh([module])

    def naming(self, optimizer: str) -> AbstractContextManager[None]:
        """Give the next optimizer the name that it has where it was made."""
        return self._elsewhere.naming(optimizer)

    @property
    def _elsewhere(self) -> MadeElsewhere:
        if self._hosting.elsewhere is None:
            raise InternalError("functions of another program run in their own")
        return self._hosting.elsewhere
