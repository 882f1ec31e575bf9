"""Bounds of gradients, and NaN in them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stratagem_proto.errors import InvalidArgumentError, NonFiniteGradientError
from stratagem_proto.programs.gradient_limits import GradientLimits
from stratagem_proto.programs.update_programs import decode_limits, encode_limits
from stratagem_proto.v1.update_program_pb2 import GradientLimits as LimitsMessage

NAN, INF = float("nan"), float("inf")

elements = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5)


@given(elements, elements, st.floats(1e-3, 1e3))
def test_the_norm_is_clipped_as_torch_clips_it(
    first: list[float], second: list[float], bound: float
) -> None:
    gradients = {"a": torch.tensor(first), "b": torch.tensor(second)}
    parameters = [nn.Parameter(torch.zeros_like(each)) for each in gradients.values()]
    for parameter, gradient in zip(parameters, gradients.values(), strict=True):
        parameter.grad = gradient.clone()
    nn.utils.clip_grad_norm_(parameters, bound)
    clipped = GradientLimits(clip_norm=bound).apply(gradients)
    assert clipped is not None
    for parameter, name in zip(parameters, "ab", strict=True):
        assert torch.equal(parameter.grad, clipped[name])  # type: ignore[arg-type]


def test_elements_are_clipped_before_the_norm() -> None:
    limits = GradientLimits(clip_value=3.0, clip_norm=2.5)
    clipped = limits.apply({"a": torch.tensor([100.0]), "b": torch.tensor([-4.0, 0])})
    assert clipped is not None
    scale = 2.5 / 18**0.5
    torch.testing.assert_close(clipped["a"], torch.tensor([3 * scale]))
    torch.testing.assert_close(clipped["b"], torch.tensor([-3 * scale, 0]))


def test_what_is_within_the_bounds_stays_as_it_is() -> None:
    gradient = torch.tensor([1.0, -1.0])
    clipped = GradientLimits(clip_value=1.0, clip_norm=2.0).apply({"a": gradient})
    assert clipped is not None
    assert torch.equal(clipped["a"], gradient)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_not_finite_is_dropped_zeroed_or_an_error(bad: float) -> None:
    gradients = {"good": torch.ones(2), "bad": torch.tensor([1.0, bad])}
    assert GradientLimits("reject").apply(gradients) is None
    zeroed = GradientLimits("zero").apply(gradients)
    assert zeroed is not None
    assert zeroed["bad"].tolist() == [1.0, 0.0]
    assert gradients["bad"][1].isfinite().item() is False
    with pytest.raises(NonFiniteGradientError, match="'bad'") as caught:
        GradientLimits("raise").apply(gradients)
    assert caught.value.variable == "bad"
    assert isinstance(caught.value, FloatingPointError)
    blind = GradientLimits().apply(gradients)
    assert blind is not None
    assert blind["bad"] is gradients["bad"]


def test_finite_gradients_pass_every_guard() -> None:
    for action in ("reject", "zero", "raise"):
        passed = GradientLimits(action).apply({"a": torch.ones(2), "b": torch.empty(0)})
        assert passed is not None
        assert torch.equal(passed["a"], torch.ones(2))


@pytest.mark.parametrize("bound", [0.0, -1.0, NAN, INF])
def test_a_bound_is_a_number_above_zero(bound: float) -> None:
    with pytest.raises(InvalidArgumentError, match="clip_value is a finite number"):
        GradientLimits(clip_value=bound)
    with pytest.raises(InvalidArgumentError, match="clip_norm is a finite number"):
        decode_limits(LimitsMessage(clip_norm=bound))


def test_unknown_actions_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="not 'ignore'"):
        GradientLimits("ignore")
    with pytest.raises(InvalidArgumentError):
        decode_limits(LimitsMessage(on_nonfinite=9))  # type: ignore[arg-type]


@pytest.mark.parametrize("action", [None, "reject", "zero", "raise"])
def test_limits_cross_the_wire(action: str | None) -> None:
    for limits in (GradientLimits(action), GradientLimits(action, 0.5, 2.0)):
        assert decode_limits(encode_limits(limits)) == limits
        assert bool(limits) is (limits != GradientLimits())
