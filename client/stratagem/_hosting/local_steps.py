"""Steps that a worker takes by itself, and the differences that it shares every now and then."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, overload

import torch
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

from stratagem._core.protocols import Seen
from stratagem._gradients import Compressor
from stratagem._hosting.hosted_parameter import hosted_parameter
from stratagem._hosting.hosting import Hosting, hosting_of
from stratagem._hosting.inner_state import on_cpu, shapes_of_state
from stratagem._hosting.optimizer import DistributedOptimizer
from stratagem._hosting.other_steps import (
    DistributedSteps,
    leave_to_own_steps,
    require_not_left,
)
from stratagem._hosting.wrapped_optimizer import OptimizerWrapper
from stratagem._strategies.strategy import get_strategy
from stratagem.consistency import Consistency, consistency_from
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)

if TYPE_CHECKING:
    from stratagem.compression import Compression

OuterOptimizer = Callable[[list[Parameter]], Optimizer]
"""Makes the optimizer of the servers for parameters, which it is given as one group."""


def _usual(workers: int) -> OuterOptimizer:
    """Return the outer optimizer for so many workers that share one by one.

    Workers that share together, or a single one, have that of DiLoCo. Of several that do not,
    each difference is late by those of the others, and momentum of 0.9 swings too far in the first
    shares of a model that was not trained before, delayed or not.
    """
    if workers > 1:
        return partial(SGD, lr=1 / workers)
    return partial(SGD, lr=0.7, momentum=0.9, nesterov=True)


_State = Mapping[str, torch.Tensor]


class _Fragment:
    """Parameters that are shared in one step of the servers.

    Args:
        own: The worker's own parameters.
        shared: The parameters of the strategy that they were; their values are the servers'.
        optimizer: Steps those.
        hosting: Brings their values.
        consistency: That of its steps; None for the strategy's.

    Attributes:
        due: How many local steps are left; or when it is due, if that goes by time.
    """

    def __init__(
        self,
        own: Sequence[Parameter],
        shared: Sequence[Parameter],
        optimizer: DistributedOptimizer,
        hosting: Hosting,
        consistency: Consistency | None,
    ) -> None:
        self._own, self._shared = own, shared
        self.optimizer, self._hosting = optimizer, hosting
        self._consistency = consistency
        self.due = 0.0
        self._shares = 0
        # The values that the worker's own have come from.
        self._base = [one.detach().clone() for one in own]
        self._is_unsure = False

    def share(self) -> None:
        """Send what the local steps have changed, and go on from what the servers make of it."""
        if self._is_unsure:
            # What failed may count already; to send it again would count it twice.
            self.adopt()
            return
        for base, own, shared in zip(self._base, self._own, self._shared, strict=True):
            shared.grad = base - own.detach() if own.requires_grad else None
        self._is_unsure = True
        seen = self._hosting.versions_here(self._shared, self._consistency)
        try:
            self.optimizer.step()
        finally:
            for shared in self._shared:
                shared.grad = None
        self.adopt(seen)

    def adopt(self, seen: Seen | None = None) -> None:
        """Go on from the servers' values; what was changed since the last ones is dropped.

        Args:
            seen: The `versions_here` before a step, which may have brought its result.
        """
        self._hosting.bring(self._shared, seen)
        with torch.no_grad():
            for base, own, shared in zip(self._base, self._own, self._shared, strict=True):
                own.copy_(shared)
                base.copy_(shared)
        self._is_unsure = False

    def keep(self, states: Mapping[Parameter, _State], every: int) -> None:
        """Keep the state of the worker's own parameters, each so many shares."""
        self._shares += 1
        if not self._shares % every:
            pairs = zip(self._own, self._shared, strict=True)
            of_shared = {shared: states.get(own, {}) for own, shared in pairs}
            self._hosting.keep_state(self.optimizer.name, of_shared, self._residuals(every))

    def kept(self, shapes: Mapping[Parameter, _State], every: int) -> dict[Parameter, _State]:
        """Return the state that was kept last, by the worker's own parameters.

        Args:
            shapes: Likewise what there will be in a state.
            every: As of `keep`.
        """
        self._shares = 0
        pairs = zip(self._own, self._shared, strict=True)
        of_shared = {shared: shapes.get(own, {}) for own, shared in pairs}
        residuals = self._residuals(every)
        states = self._hosting.kept_state(self.optimizer.name, of_shared, residuals)
        return dict(zip(self._own, states, strict=True))

    def _residuals(self, every: int) -> Compressor:
        """Return what has the residuals that are kept; later shares have sent those of some ago."""
        return self.optimizer._compressor if every == 1 else Compressor(None)

    def forget_residual(self) -> None:
        """Leave out what compression has lost until now: it is not of what counts."""
        self.optimizer._compressor.drop()

    def is_behind(self) -> bool:
        """Whether this process has replaced the servers' values, as by a checkpoint."""
        return self._hosting.is_behind(self._shared)


class OwnSteps(OptimizerWrapper):
    """An optimizer whose steps each worker takes by itself, of parameters that are its own.

    The strategy's hosting calls `_follow` before replicas run, `_keep` before servers are saved,
    `_meet` where workers meet, `_resumed` once the program has resumed, and `_part` when the
    strategy is closed.

    Attributes:
        _is_kept: Whether servers get all that it has done when they are saved, and know how far
            each worker is, so that a program can resume.
    """

    _is_kept = False

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:
        """The state of the wrapped optimizer, of this worker alone."""
        return self._inner.state

    @state.setter
    def state(self, state: defaultdict[torch.Tensor, Any]) -> None:
        self._inner.state = state

    def _follow(self) -> None:
        """Adopt what the program has restored."""
        raise NotImplementedError

    def _keep(self) -> None:
        """Have the servers hold what this worker has."""

    def _part(self) -> None:
        """Let the other workers go on by themselves."""

    def _meet(self, meet: Callable[[], object]) -> None:
        """Meet the other workers, by a call that waits for them."""
        meet()

    def _resumed(self) -> bool:
        """Go on where the process before was, as the program does that has resumed.

        Return whether workers have lost what servers do not have either.
        """
        return False

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:
        """Refuse another group: give the wrapped optimizer all groups before.

        Raises:
            InvalidArgumentError: Always.
        """
        name = type(self).__name__
        raise InvalidArgumentError(
            f"{name} takes no further param groups, since what the workers share is laid out when "
            f"it is made; give the wrapped optimizer all groups before, or make another {name}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer: that of this worker."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the state of the wrapped optimizer."""
        self._inner.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the worker's own parameters."""
        self._inner.zero_grad(set_to_none)

    def __reduce__(self) -> Any:
        raise InvalidTypeError(
            f"{type(self).__name__} cannot be copied or pickled, because what it shares lives with "
            "its strategy; keep its state_dict()"
        )


class LocalSteps(OwnSteps):
    """Wraps an optimizer that each worker steps by itself, and shares what came of many steps.

    The worker's parameters are its own from then on: its optimizer trains them as in any program
    of PyTorch, at that speed, and nothing is sent. Every now and then the difference that the steps
    have made goes to the servers, as a gradient of an outer optimizer there, and the worker goes on
    from the values that come back. So a network that is a hundred times too slow for gradients of
    each step is fast enough::

        with strategy.scope():
            model = Model()
        adamw = torch.optim.AdamW(model.parameters(), lr=3e-4)
        optimizer = LocalSteps(adamw, every=50)

        def replica_step(batch):
            optimizer.zero_grad()
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()

        strategy.run(replica_step, args=(batch,))

    The servers' values are in checkpoints, in versions that are published, and what a worker begins
    with that joins. What `model` holds in a worker is its own, and so is the state of the wrapped
    optimizer: with `keep_state` a worker that is started again goes on with it. It takes the steps
    since its last share again, of which nobody knows.

    What `consistency` says holds for the steps of the outer optimizer: "async" applies the
    difference of each worker as it comes, "sync" the mean of all workers' differences (DiLoCo).
    Where shares are lost with a server that cannot be reached, `step` raises, and the next share
    begins anew from the servers' values: a difference counts once, or not at all.

    Args:
        optimizer: An optimizer of torch over dense parameters of one strategy. Its state stays with
            this worker.
        outer: Makes the optimizer of the servers of a list of parameters, of those that
            `DistributedOptimizer` takes. By default SGD with lr=0.7, momentum=0.9 and nesterov;
            where several workers share one by one, SGD that takes its part of each difference, with
            lr=1 / workers.
        every: How many local steps are between shares.
        seconds: In place of `every`: how many seconds. Slower workers take fewer steps.
        fragments: In how many parts the parameters are shared, one after the other in the time of
            `every`: bytes spread over it (streaming DiLoCo).
        compression: How differences travel; as for `DistributedOptimizer`. Those with error
            feedback lose nothing in the long run.
        consistency: What holds the workers together in outer steps, if not the strategy's own.
        keep_state: Every how many shares the state of the wrapped optimizer goes along, for
            checkpoints and for who is started again. It is as large as what the optimizer has, of
            each worker: for AdamW twice the parameters; with 1 and error feedback, once more. None
            keeps nothing.
        clip_norm: Bound of the norm of differences; as for `DistributedOptimizer`.
        on_nonfinite: What NaN or an infinity in a difference leads to; likewise.

    Raises:
        InvalidTypeError: `optimizer` is no `torch.optim.Optimizer`, or `outer` makes none.
        InvalidArgumentError: Both or none of `every` and `seconds` are given, one is not above 0,
            there are more fragments than parameters, one of the parameters is a table or belongs to
            no strategy or one that has no servers, or this process has several replicas.

    References: Douillard et al., DiLoCo, arXiv 2311.08105; Liu et al., Asynchronous local-SGD
    training for language modeling, arXiv 2401.09135; Douillard et al., Streaming DiLoCo, arXiv
    2501.18512.
    """

    __module__ = "stratagem"

    def __init__(  # noqa: PLR0913 - independent settings, by name
        self,
        optimizer: Optimizer,
        outer: OuterOptimizer | None = None,
        *,
        every: int | None = None,
        seconds: float | None = None,
        fragments: int = 1,
        compression: Compression | str | None = None,
        consistency: Consistency | str | None = None,
        keep_state: int | None = None,
        clip_norm: float | None = None,
        on_nonfinite: str | None = None,
    ) -> None:
        if not isinstance(optimizer, Optimizer) or isinstance(optimizer, DistributedSteps):
            raise InvalidTypeError(f"LocalSteps wraps a torch.optim.Optimizer, not {optimizer!r}")
        self._every, self._seconds = _interval(every, seconds)
        self._keeps_every = _checked_state(keep_state)
        own = parameters_of(optimizer)
        if not 1 <= fragments <= len(own):
            raise InvalidArgumentError(
                f"fragments is {fragments}, but there are {len(own)} parameters to divide; "
                f"choose 1 to {len(own)}"
            )
        self._inner = optimizer
        hosting = hosting_of_own(own, "LocalSteps")
        together = None if consistency is None else consistency_from(consistency)
        if outer is None:
            outer = _usual(hosting.workers_in_turn(together))
        distributed = partial(
            DistributedOptimizer,
            compression=compression,
            consistency=consistency,
            clip_norm=clip_norm,
            on_nonfinite=on_nonfinite,
        )
        shared = lent(hosting, optimizer, "LocalSteps")
        self._fragments = []
        for places in _divided([one.nbytes for one in own], fragments):
            here, there = ([each[place] for place in places] for each in (own, shared))
            made = _Fragment(here, there, distributed(_of(outer, there)), hosting, together)
            self._fragments.append(made)
        self._told = hosting.local_steps
        self._begin_rounds()
        hosting.optimizers_in_use.add(self)
        self._shapes = shapes_of_state(optimizer) if keep_state else {}
        self._take_kept_state(or_none=False)
        # Sets up hooks and profiling; __init__ would build groups of its own.
        Optimizer.__setstate__(self, {})
        self._written = _versions(own)

    def _begin_rounds(self) -> None:
        """Have the fragments be due one after the other, the last one after a whole interval."""
        length = self._seconds or float(self._every)
        start = time.monotonic() if self._seconds else 0.0
        for number, fragment in enumerate(self._fragments, 1):
            fragment.due = start + length * number / len(self._fragments)
        self._taken = 0

    @property
    def outer(self) -> Sequence[DistributedOptimizer]:
        """The optimizer of the servers for each fragment, whose hyperparameters may be changed."""
        return [one.optimizer for one in self._fragments]

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step the worker's own parameters, and share what is due.

        Args:
            closure: As of the wrapped optimizer.

        Returns:
            What the wrapped optimizer returned.

        Raises:
            FailedPreconditionError: The program has written the parameters itself, which would be
                shared as if it had been trained.
            StratagemError: What is due cannot be shared; the local step was taken.
        """
        self._require_unwritten()
        self._told.begin_local_step()
        loss = self._inner.step() if closure is None else self._inner.step(closure)
        self._taken += 1
        due = [one for one in self._fragments if self._now() >= one.due]
        for fragment in due:
            fragment.due = self._now() + (self._seconds or self._every)
        self._share(due)
        return loss

    def _share(self, fragments: Sequence[_Fragment]) -> None:
        """Share some parts, with the state of the optimizer if it is kept."""
        try:
            if fragments:
                with self._told.sharing() as is_again:
                    for fragment in fragments:
                        fragment.share()
                        if is_again:
                            fragment.forget_residual()
                    # Who ends in between takes the steps again, with the state before them.
                    self._keep_state(fragments)
                    if is_again:
                        self._take_kept_state(or_none=True)
        finally:
            self._written = _versions(parameters_of(self._inner))

    def _keep_state(self, fragments: Sequence[_Fragment]) -> None:
        if self._keeps_every is None:
            return
        present = self._inner.state
        states = {one: on_cpu(self._inner, present[one]) for one in self._shapes if one in present}
        for fragment in fragments:
            fragment.keep(states, self._keeps_every)

    def _take_kept_state(self, or_none: bool) -> None:
        """Have the wrapped optimizer go on with what was kept; with `or_none`, even if nothing."""
        if self._keeps_every is None:
            return
        states = dict[Parameter, _State]()
        for fragment in self._fragments:
            states |= fragment.kept(self._shapes, self._keeps_every)
        if or_none or any(states.values()):
            numbered = {
                place: dict(states[one])
                for place, one in enumerate(parameters_of(self._inner))
                if states.get(one)
            }
            groups = self._inner.state_dict()["param_groups"]
            self._inner.load_state_dict({"state": numbered, "param_groups": groups})

    def _now(self) -> float:
        return time.monotonic() if self._seconds else float(self._taken)

    def share(self) -> None:
        """Share what the local steps have changed until now, and go on from the servers' values.

        For the end of training, and before what every worker is to evaluate alike.
        """
        self._require_unwritten()
        if self._told.has_nothing_to_share:
            self.adopt()
            return
        self._share(self._fragments)
        self._begin_rounds()

    def adopt(self) -> None:
        """Go on from the servers' values, as they are now; drop what local steps have changed."""
        for fragment in self._fragments:
            fragment.adopt()
        self._told.drop_local_steps()
        self._begin_rounds()
        self._written = _versions(parameters_of(self._inner))

    def _follow(self) -> None:
        """Adopt what the program has restored."""
        if any([fragment.is_behind() for fragment in self._fragments]):
            self.adopt()
            for fragment in self._fragments:
                fragment.forget_residual()
            self._take_kept_state(or_none=True)

    @property
    def _why_not_counted(self) -> str:
        """Why a program with it cannot be started again in its midst; "" if it can."""
        if self._seconds:
            return "shares after so many seconds, at other steps when they are taken again"
        if len(self._fragments) > 1:
            return "shares its fragments one by one, so that steps count for some of them only"
        return ""

    @property
    def _keeps_state(self) -> bool:
        return self._keeps_every is not None

    def _require_unwritten(self) -> None:
        if _versions(parameters_of(self._inner)) != self._written:
            raise FailedPreconditionError(
                "parameters of LocalSteps were written by the program, and the next share would "
                "send that as if it had been trained; load values before LocalSteps is made, or "
                "restore a checkpoint by strategy.restore(). adopt() takes the servers' values"
            )


def _interval(every: int | None, seconds: float | None) -> tuple[int, float]:
    if (every is None) == (seconds is None):
        raise InvalidArgumentError(
            "LocalSteps shares `every` so many steps, or after so many `seconds`; give one of both"
        )
    for name, value in (("every", every), ("seconds", seconds)):
        if value is not None and not value > 0:
            raise InvalidArgumentError(f"{name} is {value}; it has to be above 0")
    return every or 0, seconds or 0.0


def _checked_state(keep_state: int | None) -> int | None:
    if keep_state is not None and keep_state < 1:
        raise InvalidArgumentError(f"keep_state is {keep_state}; it has to be above 0, or None")
    return keep_state


def _of(outer: OuterOptimizer, parameters: list[Parameter]) -> Optimizer:
    optimizer = outer(parameters)
    if not isinstance(optimizer, Optimizer):
        raise InvalidTypeError(
            "outer makes a torch.optim.Optimizer of a list of parameters, as "
            f"functools.partial(torch.optim.SGD, lr=0.7) does; it has made {optimizer!r}"
        )
    return optimizer


def parameters_of(optimizer: Optimizer) -> list[Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _versions(parameters: Iterable[Parameter]) -> list[int]:
    return [parameter._version for parameter in parameters]


def lent(
    hosting: Hosting, optimizer: Optimizer, what: str, is_kept: bool = False
) -> list[Parameter]:
    """Leave the parameters of an optimizer to `what` alone; return as `Hosting.lend` does."""
    own = parameters_of(optimizer)
    shared = hosting.lend(own, what, is_kept)
    for one in [*hosting.optimizers_in_use]:
        if isinstance(one, DistributedOptimizer):
            one._leave(own, what)
    leave_to_own_steps(optimizer, what)
    return shared


def hosting_of_own(parameters: Sequence[Parameter], what: str) -> Hosting:
    """Return what hosts all of some parameters.

    Raises:
        InvalidArgumentError: They are of no strategy, or of several, or this process has but shards
            of them.
        FailedPreconditionError: Another optimizer trains them in this worker already.
    """
    require_not_left(parameters, what)
    if any(hasattr(one, "device_mesh") for one in parameters):
        raise InvalidArgumentError(
            f"{what} has been given parameters that fully_shard has divided, and needs whole ones, "
            "of which each worker has a copy; leave fully_shard out, or train the sharded module "
            "by a plain optimizer of torch, and its tables alone by a DistributedOptimizer"
        )
    current = hosting_of(get_strategy().extended)
    if current is not None:
        current.adopter.adopt()
    hosted = [hosted_parameter(one) for one in parameters]
    strategies = {None if one is None else one.variable.distribute_strategy for one in hosted}
    if len(strategies) > 1:
        raise InvalidArgumentError(
            f"the parameters of {what} belong to several strategies, or some to none; build their "
            "module inside `with strategy.scope():`"
        )
    (strategy,) = strategies
    found = None if strategy is None else hosting_of(strategy.extended)
    if found is None:
        raise InvalidArgumentError(
            f"the parameters of {what} belong to no strategy, so that workers would share nothing "
            "of what they train; build their module inside `with strategy.scope():`, which also a "
            "ParameterServerStrategy() without a cluster has"
        )
    return found


def _divided(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Return the places of so many parts, in order, of about as many bytes, none of them empty."""
    parts: list[list[int]] = [[]]
    total, done = sum(sizes), 0
    for place, size in enumerate(sizes):
        left = len(sizes) - place
        is_full = done >= total * len(parts) / count or left <= count - len(parts)
        if parts[-1] and is_full and len(parts) < count:
            parts.append([])
        parts[-1].append(place)
        done += size
    return parts
