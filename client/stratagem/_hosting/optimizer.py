"""A torch optimizer whose steps a strategy carries out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload
from weakref import WeakMethod

import torch
from torch.optim import Optimizer

from stratagem._core.contexts import current_context, current_replica_id, has_strategy, updating
from stratagem._core.distributed_values import has_no_rows
from stratagem._core.options import ReduceOp, reduce_op_from
from stratagem._core.replica_context import get_replica_context
from stratagem._gradients import (
    Contribution,
    GradientOverlap,
    Limiter,
    OptimizerStep,
    compressor_for,
    group_steps,
    untouched,
)
from stratagem._hosting.trained_tensors import ReplicaParams, TrainedTensors
from stratagem._hosting.wrapped_optimizer import (
    OptimizerWithSlots,
    is_recorded,
    is_scaled,
    require_fresh,
    rules_of,
    watch_scalers,
)
from stratagem._strategies.strategy import get_strategy
from stratagem.consistency import Consistency, consistency_from
from stratagem_proto.errors import ContextError, FailedPreconditionError, InvalidArgumentError
from stratagem_proto.programs.gradient_limits import GradientLimits

if TYPE_CHECKING:
    from stratagem._core.replica_context import ReplicaContext
    from stratagem._hosting.hosting import Hosting
    from stratagem._strategies.strategy import Strategy
    from stratagem.compression import Compression


class _Handed(NamedTuple):
    """A gradient that was handed on.

    Attributes:
        variable: Name of the variable.
        parameter: Whose gradient it is.
        gradient: The gradient.
        version: How often it had been written.
    """

    variable: str
    parameter: torch.Tensor
    gradient: torch.Tensor
    version: int

    def is_unchanged(self) -> bool:
        same = self.parameter.grad is self.gradient
        return same and self.gradient._version == self.version


class _Probe(NamedTuple):
    """An element by which scaling shows that leaves no other trace.

    `GradScaler.unscale_` multiplies all gradients of an optimizer by one number, and does not count
    as a write to them. If it is not 1, each element changes that is finite and not 0, so that one
    of them is enough to look at.

    Attributes:
        gradient: The gradient.
        place: Where in it the element is, in C order.
        value: The element, as it was sent.
    """

    gradient: torch.Tensor
    place: int
    value: torch.Tensor

    @classmethod
    def first_that_shows(cls, gradient: torch.Tensor) -> _Probe | None:
        """Return one of a gradient; None if scaling changes nothing in it."""
        elements = gradient.detach().reshape(-1)
        shows = elements.isfinite() & (elements != 0)
        if not shows.any():
            return None
        place = int(shows.to(torch.uint8).argmax())
        return cls(gradient, place, elements[place].clone())

    def is_unchanged(self) -> bool:
        return torch.equal(self.gradient.detach().reshape(-1)[self.place], self.value)


class Overlap:
    """Watches the parameters of one optimizer.

    Args:
        early: Where gradients go.
        trained: Finds the variables behind parameters.
    """

    def __init__(self, early: GradientOverlap, trained: TrainedTensors) -> None:
        self._early = early
        self._trained = trained
        # By id of the parameter.
        self._handed: dict[int, _Handed] = {}
        self._probe: _Probe | None = None

    def watch(self, group: int, parameters: Sequence[torch.Tensor]) -> None:
        """Hand on the gradients of a param group's dense parameters from now on."""
        final = WeakMethod(self._final)
        for parameter in parameters:
            if parameter.is_leaf and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(_call, final, group))

    def _final(self, group: int, parameter: torch.Tensor) -> None:
        gradient, trained = parameter.grad, self._trained.find(parameter)
        if gradient is None or gradient.is_sparse or trained is None or has_no_rows():
            return
        earlier = self._handed.get(id(parameter))
        if earlier is not None and earlier.gradient is gradient:
            raise FailedPreconditionError(
                f"the gradient of {trained.variable.name!r} was sent already when a "
                "second backward pass added to it; with overlap=True call "
                "optimizer.zero_grad() before each backward(), or leave overlap out to "
                "accumulate gradients",
                variable=trained.variable.name,
            )
        if earlier is not None:
            self.discard()
        self._handed[id(parameter)] = _Handed(
            trained.variable.name, parameter, gradient, gradient._version
        )
        self._probe = self._probe or _Probe.first_that_shows(gradient)
        self._early.add(trained.variable, gradient.detach(), group)

    def __enter__(self) -> None:
        """Begin the step that the gradients are for.

        Raises:
            FailedPreconditionError: One was changed since it was handed on; nothing of the pass
                will be applied.
        """
        if has_no_rows():
            self.discard()
        for handed in list(self._handed.values()):
            if not handed.is_unchanged():
                raise self.refusal(f"the gradient of {handed.variable!r} was changed")
        if self._probe is not None and not self._probe.is_unchanged():
            raise self.refusal("the scale of all gradients was changed")

    def refusal(self, what: str) -> FailedPreconditionError:
        """Return the error of gradients that were changed; nothing of the pass will be applied."""
        self.discard()
        return FailedPreconditionError(
            f"{what} after it was sent; overlap=True excludes clipping, GradScaler and "
            "whatever else changes or clears gradients between backward() and step(). "
            "Leave overlap out"
        )

    def __exit__(self, *error: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Forget what was handed on."""
        self._handed.clear()
        self._probe = None
        self._early.discard()


def _call(final: WeakMethod[Any], group: int, parameter: torch.Tensor) -> None:
    # The parameters may outlive the optimizer.
    method = final()
    if method is not None:
        method(group, parameter)


_NOTHING: AbstractContextManager[None] = nullcontext()


class DistributedOptimizer(OptimizerWithSlots):
    """Wraps an optimizer of `torch.optim`, and has the strategy make its steps.

    It is an `Optimizer` itself: schedulers, clipping, gradient accumulation and hooks work as with
    the one it wraps, whose param groups it shares. Each step sends the groups' hyperparameters
    along with the gradients, so that a change by a scheduler (on either of the two) is part of the
    next step::

        with strategy.scope():
            model = Model()
        optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))

        def replica_step(batch):
            optimizer.zero_grad()
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()

        strategy.run(replica_step, args=(batch,))

    The optimizer's state lives with the variables, so `state` is empty here and refuses changes;
    `state_dict` and `load_state_dict` fetch and replace it, in torch's format, and those of the
    wrapped optimizer refuse to be called. Hooks of either are called. A
    `stratagem.Variable` takes part by its `value()` in the param groups.

    Parameters and variables that were made outside of every scope belong to the default strategy:
    there each step is simply one of the wrapped optimizer.

    Args:
        optimizer: An optimizer over parameters of one strategy. Its state is empty. Its class is
            one that parameter servers know
            (`stratagem_proto.programs.optimizers.OPTIMIZERS`), or, under `ParameterServerStrategy`,
            any whose `step` can be traced; without a strategy, any at all.
        reduce_op: MEAN divides the sum of the replicas' gradients by the number of replicas that
            have any, as suits a loss that is a mean; SUM does not. A replica that got nothing but
            tensors of 0 rows has none.
        compression: How gradients travel to parameter servers: "bf16", "fp16", "int8", one of
            `stratagem.compression`, or None for as they are. What stays on the machine is never
            compressed, nor is what `MultiWorkerMirroredStrategy` sends.
        clip_norm: Scales the reduced gradients of each step down, all together, where their norm is
            larger, as `torch.nn.utils.clip_grad_norm_`. What is reduced over workers is clipped
            after that.
        clip_value: Likewise the bound of each element; comes before `clip_norm`.
        on_nonfinite: What NaN or an infinity in a gradient leads to, before anything is clipped:
            "zero" in its place, "reject" the step, "raise" a `NonFiniteGradientError`. None applies
            it like any number.
        consistency: What holds the workers of a `ParameterServerStrategy` together in the steps of
            this optimizer, where it is not the strategy's own.
        overlap: Whether gradients go to parameter servers while backward goes on, each once it is
            final; `step` then sends the rest, and the servers apply all or nothing. Excludes
            limits, accumulation over several backwards, and whatever changes gradients between
            backward and step, as clipping and `GradScaler` do. Of no effect where nothing is sent.

    Raises:
        InvalidTypeError: `optimizer` is no `torch.optim.Optimizer`, or one that is wrapped already,
            or `compression` nothing of the above.
        InvalidArgumentError: Its class or a flag of it is not one that servers run, there are no
            parameters, it needs whole variables and one is in parts, or one was made outside of the
            scope that is open or that the others were made in. Or a bound is not above 0, or a
            consistency is given where replicas are always in sync. Or `overlap` together with
            limits, with several replicas in this process, or with an optimizer that is traced.
        ContextError: Its parameters belong to several strategies.
        FailedPreconditionError: It has state already, or another one wraps it; or workers train the
            parameters by themselves, by `LocalSteps` or a `HybridOptimizer`.
        UpdateFunctionError: Its `step` does what no server can do; the message names file, line and
            cure.
    """

    __module__ = "stratagem"

    def __init__(  # noqa: PLR0913 - independent settings, by name
        self,
        optimizer: Optimizer,
        reduce_op: ReduceOp | str = ReduceOp.MEAN,
        *,
        compression: Compression | str | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        on_nonfinite: str | None = None,
        consistency: Consistency | str | None = None,
        overlap: bool = False,
    ) -> None:
        self._inner = optimizer
        self._reduce_op = reduce_op_from(reduce_op)
        self._compressor = compressor_for(compression)
        self._limiter = Limiter(GradientLimits(on_nonfinite, clip_value, clip_norm))
        self._rules = rules_of(optimizer)
        require_fresh(optimizer)
        self._initial_state = dict(optimizer.state)
        self._tensors = TrainedTensors()
        self._overlap: Overlap | None = None
        for number, group in enumerate(optimizer.param_groups):
            self._take_over(number, group)
        self._check_together()
        self._strategy = self._tensors.strategy
        self._name = type(optimizer).__name__
        if not self._plain:
            own = None if consistency is None else consistency_from(consistency)
            self._name = self._hosting.name_optimizer(self._name, own)
            each = [one.variable.name for _, _, one in self._trained_by_group()]
            self._hosting.describe_optimizer(self._name, optimizer, each)
            self._hosting.optimizers_in_use.add(self)
            self._keep_state_elsewhere()
            if self._strategy.num_replicas_in_sync > 1:
                watch_scalers(self)
        if overlap:
            self._begin_overlap()
        # Sets up hooks and profiling; __init__ would build groups of its own.
        Optimizer.__setstate__(self, {})
        if not self._plain:
            self._lead_here()

    @property
    def name(self) -> str:
        """The name that slot variables and reports bear, as in "Adam_1"."""
        return self._name

    def _forget(self) -> None:
        """Refuse further steps, since the state is gone."""
        self._tensors.forget(
            f"the optimizer {self._name!r} was given to strategy.forget(), and its state is gone; "
            "make another one"
        )

    def _leave(self, parameters: Sequence[torch.Tensor], what: str) -> None:
        """Refuse further steps if it has some of these parameters, which `what` trains now."""
        left = set(map(id, parameters))
        if any(id(one) in left for group in self._inner.param_groups for one in group["params"]):
            self._tensors.forget(
                f"the optimizer {self._name!r} would step parameters on the servers that a "
                f"{what} was given since, which trains them in the workers, where nobody would see "
                "that step; give each parameter to one optimizer"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as `torch.optim.Optimizer` does.

        Raises:
            InvalidArgumentError: A parameter was made outside of the strategy's scope; the groups
                are as before.
            ContextError: A parameter belongs to another strategy; likewise.
        """
        groups = self._inner.param_groups
        self._inner.add_param_group(param_group)
        with ExitStack() as undo:
            undo.callback(groups.pop)
            self._take_over(len(groups) - 1, groups[-1])
            self._check_together()
            undo.pop_all()

    def _take_over(self, number: int, group: dict[str, Any]) -> None:
        # Refuses flags that servers cannot honour.
        self._rules.check_group(group)
        self._tensors.add(group["params"], f"param group {number}")
        if not self._plain:
            group["params"] = ReplicaParams(group["params"], self._tensors)
            hosting = cast("Hosting", self._tensors.strategy.extended._hosting)
            self._rules.check_variables(group, hosting)
        if self._overlap is not None:
            self._overlap.watch(number, group["params"])

    def _check_together(self) -> None:
        if self._plain:
            return
        self._rules.check_together(self._inner.param_groups)
        hosting = cast("Hosting", self._tensors.strategy.extended._hosting)
        known = (one for one in hosting.optimizers_in_use if isinstance(one, DistributedOptimizer))
        if any(one._inner is self._inner and one is not self for one in known):
            raise FailedPreconditionError(
                f"the {type(self._inner).__name__} is wrapped by another DistributedOptimizer "
                "already, and both would step its parameters; use that one, or make two optimizers"
            )

    def _begin_overlap(self) -> None:
        self._limiter.require_none("overlap=True")
        if self._plain:
            return
        if self._rules.are_traced:
            raise InvalidArgumentError(
                f"overlap=True needs an optimizer that servers know by name, and "
                f"{type(self._inner).__name__} is traced; leave it out"
            )
        early = self._hosting.overlapped_push(self._name, self._compressor)
        if early is not None:
            self._overlap = Overlap(early, self._tensors)
            watch_scalers(self)
            for number, group in enumerate(self.param_groups):
                self._overlap.watch(number, group["params"])

    @property
    def rejected_steps(self) -> int:
        """How many steps were dropped by `on_nonfinite="reject"`.

        Of steps that workers take together, as of the last refresh.
        """
        found = self._limiter.rejected_steps
        return found if self._plain else found + self._hosting.rejected_steps(self._name)

    # Steps.

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Bring the replicas' gradients together and have them applied.

        Every replica has to make the call; where this process has but one, it may also be made
        outside of `run`. Parameters that have no gradient on any replica stay as they are. The
        others have their new values when this returns.

        Args:
            closure: Computes the loss and the gradients of this replica, first.

        Returns:
            What `closure` returned.

        Raises:
            ContextError: No replica of the parameters' strategy is running, and it has several in
                this process, or another strategy is in charge.
            FailedPreconditionError: With `overlap`, a gradient was changed since backward; or, with
                several replicas in this process, outside of `run`. Or a `GradScaler` makes the call
                where several replicas are in sync. Nothing is applied.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        context = current_context()
        if context and context.replica_context and context.strategy is self._strategy:
            # In a run, as nearly always.
            self._contribute(cast("ReplicaContext", context.replica_context))
        elif self._is_outside_of_runs():
            self._hosting.step_outside_of_runs(lambda: self._contribute(self._replica()))
        else:
            self._contribute(self._replica())
        return loss

    def _is_outside_of_runs(self) -> bool:
        """Whether this is the loop of a program with one replica and no `run`."""
        if self._plain or self._strategy.extended._num_local_replicas != 1:
            return False
        context = current_context()
        if context is None:
            return True
        return context.replica_context is None and context.strategy is self._strategy

    def _contribute(self, replica: ReplicaContext) -> None:
        if self._tensors.plain:
            self._limiter.step_alone(self._inner)
            return
        if is_scaled(self):
            raise self._scaled()
        contribution = Contribution.of_this_replica(self._inner.param_groups)
        with self._overlap or _NOTHING:
            replica.merge_call(self._apply_merged, args=(contribution,))
        self._show_schedulers_a_step()

    def _scaled(self) -> FailedPreconditionError:
        if self._overlap is not None:
            return self._overlap.refusal("the scale of a gradient was changed")
        return FailedPreconditionError(
            f"a GradScaler steps {self._name!r}, whose steps several replicas take together; it "
            "would leave a step out in the replica that has an infinity, and not in the others. "
            "Train in bfloat16, which needs no scaling, and have steps with gradients that are not "
            'finite dropped by DistributedOptimizer(on_nonfinite="reject")'
        )

    def _replica(self) -> ReplicaContext:
        context = get_replica_context()
        if context is not None and context.strategy is self._strategy:
            return context
        if self._plain and has_strategy():
            raise ContextError(
                f"DistributedOptimizer.step() of {self._name!r} is called under "
                f"{get_strategy()}, but its parameters were made outside of every "
                "scope; build their module inside `with strategy.scope():`"
            )
        if has_strategy() and get_strategy() is not self._strategy:
            raise ContextError(
                f"DistributedOptimizer.step() of {self._name!r} is called under "
                f"{get_strategy()}, but its parameters are those of {self._strategy}; "
                "call it in a function that the latter's run() is given"
            )
        raise ContextError(
            f"DistributedOptimizer.step() of {self._name!r} must be called in a "
            "replica; call it in the function that you give to strategy.run()"
        )

    def _apply_merged(self, strategy: Strategy, contributions: Any) -> None:
        # Those of all replicas of this process; a lone one is not merged.
        hosting = self._hosting
        if isinstance(contributions, Contribution):
            each: Sequence[Contribution] = (contributions,)
        else:
            each = hosting.extended._local_results(contributions)
        groups = group_steps(each)
        if len(hosting.devices) > 1:
            stepped = chain.from_iterable([group.variables for group in groups])
            hosting.parameters.require_gradients_of_replicas(stepped)
        hosting.apply_gradients(
            OptimizerStep(
                self._name,
                type(self._inner).__name__,
                self._rules.divided(groups, self._inner.param_groups),
                self._reduce_op,
                sum(map(bool, each)),
                self._compressor,
                self._limiter,
                untouched(each[-1], groups),
            )
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of this replica; outside of replicas, of all."""
        if self._overlap is not None:
            self._overlap.discard()
        if self._tensors.plain:
            super().zero_grad(set_to_none)
        elif current_replica_id() is not None:
            self._clear(set_to_none)
        else:
            for replica, _ in enumerate(self._hosting.devices):
                with updating(self._strategy, replica):
                    self._clear(set_to_none)

    def _clear(self, set_to_none: bool) -> None:
        is_watched = is_recorded() or torch.compiler.is_compiling()
        if not set_to_none or is_watched:
            super().zero_grad(set_to_none)
            return
        # What torch does, without what a compiler or a profiler would see of it.
        for group in self._inner.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
