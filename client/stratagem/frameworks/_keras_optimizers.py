"""Keras' optimizers as those that parameter servers step by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from stratagem_proto.errors import InvalidArgumentError

_Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]]
_State = dict[str, torch.Tensor]
_Group = Mapping[str, Any]


class _AsKeras(Optimizer):
    """Steps each parameter as Keras does, operation by operation, so that servers round alike."""

    def __init__(self, params: _Params, settings: Mapping[str, Any]) -> None:
        super().__init__(params, dict(settings))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override] # torch overloads it
        """Step all parameters that have a gradient; `closure` is for torch's signature."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if group["weight_decay"] != 0:
                    parameter.mul_(1 - group["weight_decay"] * group["lr"])
                self._step_one(parameter, parameter.grad, self.state[parameter], group)

    def _step_one(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: _State, group: _Group
    ) -> None:
        raise NotImplementedError


def _averaged(average: torch.Tensor, value: torch.Tensor, rate: float) -> torch.Tensor:
    return average.mul_(rate).add_(value, alpha=1 - rate)


def _slots(state: _State, parameter: torch.Tensor, *names: str) -> list[torch.Tensor]:
    for name in names:
        if name not in state:
            state[name] = torch.zeros_like(parameter)
    return [state[name] for name in names]


def _counted(state: _State) -> torch.Tensor:
    """Count a step of a parameter, in the precision in which Keras computes with it."""
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32)
    return state["step"].add_(1)


class KerasSGD(_AsKeras):
    """Of Keras, whose momentum has the learning rates of earlier steps in it."""

    def _step_one(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: _State, group: _Group
    ) -> None:
        if group["momentum"] == 0:
            parameter.add_(gradient, alpha=-group["lr"])
            return
        (velocity,) = _slots(state, parameter, "velocity")
        velocity.mul_(group["momentum"]).add_(gradient, alpha=-group["lr"])
        if group["nesterov"]:
            parameter.add_(gradient, alpha=-group["lr"])
            parameter.add_(velocity, alpha=group["momentum"])
        else:
            parameter.add_(velocity)


class KerasAdam(_AsKeras):
    """Of Keras, whose epsilon comes on top of an average that is not corrected for its start."""

    def _step_one(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: _State, group: _Group
    ) -> None:
        first, second = _slots(state, parameter, "momentum", "velocity")
        step = _counted(state)
        remaining = 1 - torch.pow(group["beta_2"], step)
        rate = group["lr"] * remaining.sqrt() / (1 - torch.pow(group["beta_1"], step))
        _averaged(first, gradient, group["beta_1"])
        _averaged(second, gradient * gradient, group["beta_2"])
        if group["amsgrad"]:
            (largest,) = _slots(state, parameter, "velocity_hat")
            second = largest.copy_(torch.maximum(largest, second))
        parameter.sub_(first * rate / (second.sqrt() + group["epsilon"]))


class KerasAdagrad(_AsKeras):
    """Of Keras, whose epsilon is in the root."""

    def _step_one(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: _State, group: _Group
    ) -> None:
        if "accumulator" not in state:
            state["accumulator"] = torch.full_like(parameter, group["initial_accumulator_value"])
        total = state["accumulator"].add_(gradient * gradient)
        parameter.sub_(gradient * group["lr"] / (total + group["epsilon"]).sqrt())


class KerasRMSprop(_AsKeras):
    """Of Keras, whose epsilon is in the root."""

    def _step_one(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: _State, group: _Group
    ) -> None:
        (velocity,) = _slots(state, parameter, "velocity")
        scale = _averaged(velocity, gradient * gradient, group["rho"]) + group["epsilon"]
        if group["centered"]:
            (average,) = _slots(state, parameter, "average_gradient")
            _averaged(average, gradient, group["rho"])
            scale = scale - average * average
        change = gradient * group["lr"] / scale.sqrt()
        if group["momentum"] > 0:
            (momentum,) = _slots(state, parameter, "momentum")
            change = momentum.mul_(group["momentum"]).add_(change)
        parameter.sub_(change)


class KerasAdamax(_AsKeras):
    """Of Keras, which scales the largest gradient where PyTorch scales the rate."""

    def _step_one(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: _State, group: _Group
    ) -> None:
        momentum, largest = _slots(state, parameter, "momentum", "norm")
        step = _counted(state)
        _averaged(momentum, gradient, group["beta_1"])
        largest.copy_(torch.maximum(largest.mul_(group["beta_2"]), gradient.abs()))
        scale = (largest + group["epsilon"]) * (1 - torch.pow(group["beta_1"], step))
        parameter.sub_(momentum * group["lr"] / scale)


class KerasNadam(_AsKeras):
    """Of Keras, whose momentum grows by a schedule of its own."""

    def _step_one(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: _State, group: _Group
    ) -> None:
        first, second = _slots(state, parameter, "momentum", "velocity")
        if "product" not in state:
            state["product"] = torch.ones((), dtype=torch.float32)
        step = _counted(state)
        beta = group["beta_1"]
        now = beta * (1.0 - 0.5 * torch.pow(0.96, step))
        later = beta * (1.0 - 0.5 * torch.pow(0.96, step + 1))
        product = state["product"].mul_(now)
        _averaged(first, gradient, beta)
        _averaged(second, gradient * gradient, group["beta_2"])
        ahead = first * later / (1 - product * later) + gradient * (1 - now) / (1 - product)
        scale = (second / (1 - torch.pow(group["beta_2"], step))).sqrt() + group["epsilon"]
        parameter.sub_(ahead * group["lr"] / scale)


class KerasAdadelta(_AsKeras):
    """Of Keras."""

    def _step_one(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: _State, group: _Group
    ) -> None:
        squares, changes = _slots(state, parameter, "accumulated_grad", "accumulated_delta_var")
        rho, epsilon = group["rho"], group["epsilon"]
        _averaged(squares, gradient * gradient, rho)
        change = (changes + epsilon).sqrt() * gradient / (squares + epsilon).sqrt() * -1
        _averaged(changes, change * change, rho)
        parameter.add_(change * group["lr"])


class KerasLion(_AsKeras):
    """Of Keras."""

    def _step_one(
        self, parameter: torch.Tensor, gradient: torch.Tensor, state: _State, group: _Group
    ) -> None:
        (momentum,) = _slots(state, parameter, "momentum")
        direction = (momentum * group["beta_1"]).add(gradient, alpha=1 - group["beta_1"]).sign()
        parameter.sub_(direction * group["lr"])
        _averaged(momentum, gradient, group["beta_2"])


class _Mapping(NamedTuple):
    """What servers step by in place of an optimizer of Keras.

    Attributes:
        cls: Which does the same.
        settings: The attributes of Keras' that it needs.
    """

    cls: type[_AsKeras]
    settings: tuple[str, ...]


_ADAM = _Mapping(KerasAdam, ("beta_1", "beta_2", "epsilon", "amsgrad"))
_MAPPINGS: Mapping[str, _Mapping] = {
    "Adadelta": _Mapping(KerasAdadelta, ("rho", "epsilon")),
    "Adagrad": _Mapping(KerasAdagrad, ("initial_accumulator_value", "epsilon")),
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "Adamax": _Mapping(KerasAdamax, ("beta_1", "beta_2", "epsilon")),
    "Lion": _Mapping(KerasLion, ("beta_1", "beta_2")),
    "Nadam": _Mapping(KerasNadam, ("beta_1", "beta_2", "epsilon")),
    "RMSprop": _Mapping(KerasRMSprop, ("rho", "momentum", "epsilon", "centered")),
    "SGD": _Mapping(KerasSGD, ("momentum", "nesterov")),
}
# Steppers get the rate of each step with that step.
_NO_RATE = 1.0


def require_known(optimizer: Any) -> None:
    """Check that servers can do what an optimizer of Keras does.

    Raises:
        InvalidArgumentError: They cannot.
    """
    cls = type(optimizer)
    if cls.__name__ == "LossScaleOptimizer":
        raise InvalidArgumentError(
            "LossScaleOptimizer, which Keras takes for mixed_float16, would leave out steps in one "
            'worker and not in the others; train with the dtype policy "mixed_bfloat16", which '
            "needs none, or set loss_scale_factor of the optimizer in it"
        )
    if cls.__name__ not in _MAPPINGS or not cls.__module__.startswith("keras."):
        raise InvalidArgumentError(
            f"{cls.__name__} of {cls.__module__} has no counterpart on parameter servers; these of "
            f"keras.optimizers have: {', '.join(_MAPPINGS)}"
        )
    if optimizer.use_ema:
        raise InvalidArgumentError(
            f"{cls.__name__}(use_ema=True) would swap averages of this worker for the weights that "
            "all workers train; leave it out"
        )


def can_step_rows(optimizer: Any, variable: Any, lazy: bool) -> bool:
    """Return whether servers step the rows of a batch alone, and the others stay as they are.

    Args:
        optimizer: Of Keras.
        variable: A table.
        lazy: Whether that will do for Adam, which moves all rows in Keras.
    """
    whole = _decay(optimizer, variable) or optimizer.gradient_accumulation_steps
    return not whole and _by_rows(optimizer, lazy) is not None


def _by_rows(optimizer: Any, lazy: bool) -> Callable[[_Params], Optimizer] | None:
    """Return what steps rows as Keras steps them, of those that servers know by name."""
    match type(optimizer).__name__:
        case "SGD" if not optimizer.momentum:
            return partial(torch.optim.SGD, lr=_NO_RATE)
        case "Adagrad" if (start := optimizer.initial_accumulator_value + optimizer.epsilon) > 0:
            # Keras adds epsilon to each sum, which is where it can begin as well.
            return partial(
                torch.optim.Adagrad, lr=_NO_RATE, initial_accumulator_value=start, eps=0.0
            )
        case "Adam" | "AdamW" if lazy and not optimizer.amsgrad:
            betas = optimizer.beta_1, optimizer.beta_2
            # Of torch's, the one whose epsilon is where that of Keras is.
            return partial(torch.optim.SparseAdam, lr=_NO_RATE, betas=betas, eps=optimizer.epsilon)
    return None


def as_torch(
    optimizer: Any, variables: Sequence[Any], tables: Sequence[Any], lazy: bool
) -> list[Optimizer]:
    """Return what steps variables of Keras as an optimizer of Keras does.

    Args:
        optimizer: Of Keras.
        variables: All that are to be stepped.
        tables: Those of them that are tables, of which `can_step_rows`.
        lazy: As there.
    """
    in_tables = {id(one) for one in tables}
    dense = [one for one in variables if id(one) not in in_tables]
    by_rows, made = _by_rows(optimizer, lazy), list[Optimizer]()
    decays = [_decay(optimizer, one) for one in dense]
    if by_rows is not None and not any(decays) and not type(optimizer).__name__.startswith("Adam"):
        # One optimizer, one push.
        return [by_rows([one._value for one in variables])]
    if dense:
        mapping = _MAPPINGS[type(optimizer).__name__]
        settings = {name: getattr(optimizer, name) for name in mapping.settings}
        pairs = [*zip(dense, decays, strict=True)]
        groups = [
            {"params": [one._value for one, its in pairs if its == decay], "weight_decay": decay}
            for decay in sorted(set(decays))
        ]
        made.append(mapping.cls(groups, {"lr": _NO_RATE, "weight_decay": 0.0, **settings}))
    if tables:
        assert by_rows is not None
        made.append(by_rows([one._value for one in tables]))
    return made


def _decay(optimizer: Any, variable: Any) -> float:
    decays = optimizer.weight_decay is not None and optimizer._use_weight_decay(variable)
    return float(optimizer.weight_decay) if decays else 0.0
