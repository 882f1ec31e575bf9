"""Names of the variables that keep optimizers' state."""

from __future__ import annotations

import pytest

from stratagem_proto.programs.optimizers import SlotName


@pytest.mark.parametrize("optimizer", ["Adam", "Adam_1", "SGD_12"])
def test_a_name_has_the_parts_that_it_was_made_of(optimizer: str) -> None:
    made = SlotName("tower/weight", optimizer, "exp_avg")
    assert SlotName.parse(str(made)) == made


@pytest.mark.parametrize("name", ["", "weight", "a/b", "a/b/c", "a/adam/c", "a/Adam1/c"])
def test_a_name_without_an_optimizer_is_none_of_a_slot(name: str) -> None:
    assert SlotName.parse(name) is None
