"""Each batch of a pass is handed out once, whoever draws and whoever is lost."""

from __future__ import annotations

import json
from itertools import chain

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidNameError,
    NotFoundError,
    ResourceExhaustedError,
)
from stratagem_psserver import data_ledgers
from stratagem_psserver.data_ledgers import DataLedgers, Function
from tests.full import examples

NAME, NUM_BATCHES, SEED = "ratings", 5, 7
FIRST, SECOND = b"first", b"second"


class Program:
    """A ledger and what a program knows of it.

    Attributes:
        left: The functions that other coordinators have left, and how many batches of the pass
            these have, as of `open`.
    """

    left: dict[Function, int]

    def __init__(self, num_batches: int = NUM_BATCHES) -> None:
        self.ledgers = DataLedgers()
        self.num_batches = num_batches

    def open(self, coordinator: bytes = FIRST) -> int:
        opened = self.ledgers.open(NAME, self.num_batches, SEED, coordinator)
        self.left = {
            Function(space, number): batches
            for space, functions in opened.left.items()
            for number, batches in functions.items()
        }
        return opened.number

    def draw(self, number: int, function: int = 1, coordinator: bytes = FIRST) -> int | None:
        who = Function(coordinator, function)
        return self.ledgers.draw(NAME, number, self.num_batches, who)

    def end(self, *functions: Function) -> None:
        self.ledgers.release_ended(lambda one: one in functions)

    def restart(self) -> None:
        """Lets another run of the server go on from a checkpoint."""
        facts = json.loads(json.dumps(self.ledgers.facts()))
        self.ledgers = DataLedgers()
        self.ledgers.restore(facts)


class LostAndFound(RuleBasedStateMachine):
    """Functions draw and end; coordinators die, and others go on."""

    def __init__(self) -> None:
        super().__init__()
        self.program = Program()
        self.coordinators = 1
        self.functions = 0
        # What each function that may still draw has drawn in the current pass.
        self.running: dict[Function, list[int]] = {}
        self.orphans: list[Function] = []
        self.done: list[int] = []
        self.number = self.program.open(self.coordinator)

    @property
    def coordinator(self) -> bytes:
        return b"coordinator %d" % self.coordinators

    @rule()
    def schedule(self) -> None:
        self.functions += 1
        self.running[Function(self.coordinator, self.functions)] = []

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def draw(self, data: st.DataObject) -> None:
        function = data.draw(st.sampled_from(list(self.running)))
        batch = self.program.ledgers.draw(NAME, self.number, NUM_BATCHES, function)
        if batch is None:
            assert len(self.drawn()) == NUM_BATCHES
        else:
            self.running[function].append(batch)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        function = data.draw(st.sampled_from(list(self.running)))
        self.done += self.running.pop(function)
        self.program.end(function)

    @rule()
    def server_goes_on_from_a_checkpoint(self) -> None:
        self.program.restart()

    @precondition(lambda self: not self.is_over())
    @rule()
    def coordinator_dies(self) -> None:
        self.coordinators += 1
        assert self.program.open(self.coordinator) == self.number
        kept = self.program.left
        assert kept == {one: len(has) for one, has in self.running.items() if has}
        self.orphans += [one for one in self.running if one not in kept]
        self.running = {one: self.running[one] for one in kept}

    @precondition(lambda self: self.orphans and len(self.drawn()) < NUM_BATCHES)
    @rule(data=st.data())
    def orphan_draws(self, data: st.DataObject) -> None:
        function = data.draw(st.sampled_from(self.orphans))
        with pytest.raises(FailedPreconditionError, match="another coordinator"):
            self.program.ledgers.draw(NAME, self.number, NUM_BATCHES, function)

    @precondition(lambda self: self.is_over())
    @rule()
    def begin_another_pass(self) -> None:
        self.done = []
        # Functions that have not drawn in a pass may do so in the next one.
        number = self.program.open(self.coordinator)
        assert number == self.number + 1
        self.number = number

    @invariant()
    def each_batch_is_drawn_once(self) -> None:
        assert sorted(self.drawn()) == list(range(len(self.drawn())))

    def drawn(self) -> list[int]:
        return [*self.done, *chain.from_iterable(self.running.values())]

    def is_over(self) -> bool:
        return len(self.done) == NUM_BATCHES


LostAndFound.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30)
test_each_batch_is_handed_out_once_whatever_is_lost = LostAndFound.TestCase


def test_the_coordinator_that_opened_a_pass_opens_another_one() -> None:
    program = Program()
    assert [program.open(), program.open()] == [0, 1]
    assert [program.draw(1), program.draw(0), program.draw(0)] == [0, 0, 1]


def test_another_coordinator_begins_anew_where_the_last_pass_is_over() -> None:
    program = Program(num_batches=1)
    program.draw(program.open())
    program.end(Function(FIRST, 1))
    assert program.open(SECOND) == 1


def test_a_pass_of_no_batches_is_over_at_once() -> None:
    program = Program(num_batches=0)
    assert program.draw(program.open()) is None
    assert program.open(SECOND) == 1


def test_the_first_seed_counts() -> None:
    program = Program()
    program.open()
    assert program.ledgers.open(NAME, NUM_BATCHES, SEED + 1, SECOND).ledger.seed == SEED


def test_a_function_that_drew_of_a_pass_that_was_left_may_end() -> None:
    program = Program()
    program.draw(program.open())
    program.open()
    program.end(Function(FIRST, 1))
    assert program.draw(0, function=2) == 1


def test_other_data_are_refused() -> None:
    program = Program()
    program.open()
    program.num_batches = 6
    with pytest.raises(FailedPreconditionError, match="6 batches here, but had 5"):
        program.open()
    with pytest.raises(FailedPreconditionError, match="6 batches here, but had 5"):
        program.draw(0)


def test_names_are_checked() -> None:
    with pytest.raises(InvalidNameError, match="dataset name"):
        DataLedgers().open("a name", NUM_BATCHES, SEED, FIRST)


def test_a_pass_has_to_be_opened() -> None:
    program = Program()
    with pytest.raises(NotFoundError, match="no dataset 'ratings'"):
        program.draw(0)
    program.open()
    with pytest.raises(NotFoundError, match="has no pass 1"):
        program.draw(1)


def test_the_oldest_pass_that_was_left_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_ledgers, "MAX_PASSES", 2)
    program = Program()
    for _ in range(3):
        program.open()
    assert program.draw(0) is None
    assert program.draw(1) == 0


def test_ledgers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_ledgers, "MAX_LEDGERS", 1)
    program = Program()
    program.open()
    with pytest.raises(ResourceExhaustedError, match="1 datasets"):
        program.ledgers.open("other", NUM_BATCHES, SEED, FIRST)
    assert program.open() == 1
