"""Gradients that are kept until the step that they are for."""

from __future__ import annotations

import pytest
import torch

from stratagem_proto.errors import AbortedError, InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.v1.update_program_pb2 import BackwardPass
from stratagem_psserver.limits import Budget, Reservation
from stratagem_psserver.optimization import gradients as kept_gradients
from stratagem_psserver.optimization.gradients import Gradient, KeptGradients

SESSION = b"s" * 16


def backward(number: int = 1, optimizer: str = "SGD") -> BackwardPass:
    return BackwardPass(optimizer=optimizer, number=number)


class Keeper:
    """Keeps gradients of 4 bytes each, within a budget."""

    def __init__(self) -> None:
        self.budget = Budget(100)
        self.kept = KeptGradients()

    def keep(self, variable: str, number: int = 1, optimizer: str = "SGD") -> None:
        with self.reserved() as reservation:
            gradient = Gradient(variable, 0, torch.zeros(1))
            which = backward(number, optimizer)
            self.kept.keep(SESSION, which, [gradient], reservation)

    def reserved(self) -> Reservation:
        return self.budget.reserve(4, "a gradient")

    def names(self, number: int = 1) -> list[str]:
        return list(self.kept.get(SESSION, backward(number)).gradients)


def test_gradients_are_kept_in_their_order_with_their_bytes() -> None:
    keeper = Keeper()
    keeper.keep("b")
    keeper.keep("a")
    assert keeper.names() == ["b", "a"]
    assert keeper.budget.used == 8
    keeper.kept.drop(SESSION, backward())
    assert keeper.budget.used == 0


def test_a_new_pass_drops_the_one_before() -> None:
    keeper = Keeper()
    keeper.keep("a")
    keeper.keep("b", number=2)
    assert keeper.names(2) == ["b"]
    assert keeper.budget.used == 4
    with pytest.raises(AbortedError, match="backward pass 1 of 'SGD' are gone"):
        keeper.names()


def test_each_optimizer_has_a_pass_of_its_own() -> None:
    keeper = Keeper()
    keeper.keep("a")
    keeper.keep("a", optimizer="Adam")
    assert keeper.names() == ["a"]


def test_a_gradient_comes_once() -> None:
    keeper = Keeper()
    keeper.keep("a")
    with pytest.raises(InvalidArgumentError, match="'a' has a gradient"):
        keeper.keep("a")
    assert keeper.budget.used == 4


def test_the_end_of_a_session_frees_what_it_sent() -> None:
    keeper = Keeper()
    keeper.keep("a")
    keeper.keep("b", optimizer="Adam")
    keeper.kept.session_ended(SESSION)
    assert keeper.budget.used == 0
    with pytest.raises(AbortedError):
        keeper.names()


def test_a_session_has_a_share_of_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_gradients, "MAX_PASSES", 8)
    keeper = Keeper()
    for optimizer in "abcdef":
        keeper.keep("v", optimizer=optimizer)
    with pytest.raises(ResourceExhaustedError, match="of 6 backward passes are kept for session"):
        keeper.keep("v", optimizer="g")
    with keeper.reserved() as reservation:
        gradient = Gradient("v", 0, torch.zeros(1))
        keeper.kept.keep(b"t" * 16, backward(), [gradient], reservation)
    keeper.keep("v", number=2, optimizer="a")
