"""What hosts return and raise, and what the program believes of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import (
    MalformedStreamError,
    TPUStrategy,
    UnavailableError,
    Variable,
    WorkerFunctionError,
    config,
)
from stratagem._shipping.outcome_forms import PickledOutcomes, PlainOutcomes
from stratagem._tpu import host, remote, session
from stratagem._tpu.host import carry_out
from stratagem_deploy import LocalCluster
from tests.full import a_few

RAN: list[str] = []


def take_over(what: str) -> None:
    RAN.append(what)


class Hostile:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return take_over, ("the program",)


@dataclass
class Loss:
    value: float


class OwnError(Exception):
    pass


@pytest.fixture
def trusting(cluster: LocalCluster) -> Iterator[TPUStrategy]:
    config.set_logical_cpus(2)
    strategy = TPUStrategy(cluster.cluster_resolver, trust_workers=True)
    yield strategy
    strategy.extended.disconnect()
    config.set_logical_cpus(1)


def own_object() -> Loss:
    return Loss(0.5)


def own_error() -> None:
    raise OwnError("of this program")


def test_objects_of_other_classes_take_trust(strategy: TPUStrategy, trusting: TPUStrategy) -> None:
    with pytest.raises(TypeError, match=r"is a tests\.\S+\.Loss.*TPUStrategy\(resolver, trust_w"):
        strategy.run(own_object)
    assert strategy.run(lambda: 1) == 1
    found = trusting.experimental_local_results(trusting.run(own_object))
    assert {each.value for each in found} == {0.5}


def test_exceptions_of_other_classes_take_trust(
    strategy: TPUStrategy, trusting: TPUStrategy
) -> None:
    with pytest.raises(
        WorkerFunctionError, match=r"raised OwnError, which does not travel"
    ) as told:
        strategy.run(own_error)
    assert told.value.class_name == "OwnError"
    assert "own_error" in str(told.value.__cause__)
    with pytest.raises(OwnError, match="of this program"):
        trusting.run(own_error)
    assert strategy.run(lambda: 1) == trusting.run(lambda: 1) == 1


def test_what_a_host_sends_runs_nothing_without_trust(
    strategy: TPUStrategy, trusting: TPUStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy.run(lambda: 1)
    trusting.run(lambda: 1)
    RAN.clear()
    for form in (PlainOutcomes, PickledOutcomes):
        monkeypatch.setattr(form, "dump", lambda form, value: pickle.dumps(Hostile()))
    with pytest.raises(MalformedStreamError, match=r"worker/task:0.* no value of Stratagem"):
        strategy.run(lambda: 1)
    assert RAN == []
    with pytest.raises(UnavailableError, match="not in step any more: an answer cannot be read"):
        strategy.run(lambda: 1)
    # Trust is what it takes.
    with pytest.raises((MalformedStreamError, TypeError, AttributeError)):
        trusting.run(lambda: 1)
    assert RAN


ANSWERS: list[Any] = []


def lying(*args: Any) -> Any:
    """Tells the next of the lies in place of an answer."""
    told = carry_out(*args)
    return ANSWERS[0](told)


def replaced(index: int, part: Any) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    return lambda told: (*told[:index], part, *told[index + 1 :])


LIES = {
    "other parts": lambda told: [*told],
    "fewer parts": lambda told: told[:-1],
    "a result that is no bytes": replaced(0, "text"),
    "an error that is none": replaced(1, b"\xff\xff"),
    "a truth that is a number": replaced(2, 1),
    "a variable by its name": replaced(3, {"v": torch.zeros(2)}),
    "a variable by a truth": replaced(3, {True: torch.zeros(2)}),
    "a variable that there is not": replaced(3, {7: torch.zeros(2)}),
    "a variable counted from the end": replaced(3, {-1: torch.zeros(2)}),
    "a value of another shape": replaced(3, {2: torch.zeros(3)}),
    "a value that is no tensor": replaced(3, {2: 1.0}),
    "a buffer that there is not": replaced(4, [(0, "other", torch.zeros(1))]),
    "a buffer of no module": replaced(4, [(9, "running_mean", torch.zeros(1))]),
    "a buffer that is no tensor": replaced(4, [(0, "running_mean", 1.0)]),
}


@a_few("lie", LIES, "lies are told apart by one check", 5)
def test_an_answer_that_no_host_could_give_changes_nothing(
    strategy: TPUStrategy, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strategy.scope():
        model = nn.BatchNorm1d(1)
        v = Variable(torch.ones(2), name="v")
    strategy.run(lambda: 1)
    before = [each.clone() for each in (*model.state_dict().values(), v.read_value())]
    monkeypatch.setattr(remote, "carry_out", lying)
    ANSWERS[:] = [LIES[lie]]
    with pytest.raises(MalformedStreamError, match="/job:worker/task:0 returned what no host"):
        strategy.run(lambda: v.assign(torch.zeros(2)))
    after = [*model.state_dict().values(), v.read_value()]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    monkeypatch.undo()
    with pytest.raises(UnavailableError, match="not in step any more"):
        strategy.run(lambda: 1)
    strategy.extended.connect()
    assert strategy.run(lambda: 1) == 1


def no_names(*args: Any) -> Any:
    return {"cores": 1}


@pytest.mark.parametrize(
    ("where", "name", "asked"),
    [
        (session, "cores_here", lambda strategy: strategy.extended.connect()),
        (session, "open_meeting_point", lambda strategy: strategy.extended.connect()),
        (remote, "run", lambda strategy: strategy.run(lambda: 1)),
        (
            remote,
            "optimizers_with_state",
            lambda strategy: (strategy.run(lambda: 1), strategy.extended.disconnect()),
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_other_answers_are_checked_too(
    strategy: TPUStrategy,
    where: Any,
    name: str,
    asked: Callable[[TPUStrategy], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(where, name, no_names)
    with pytest.raises(MalformedStreamError, match="/job:worker/task:0 returned what no host"):
        asked(strategy)


def fewer_outputs(*args: Any) -> Any:
    reduced, of_cores, others, others_of_cores = host.loop(*args)
    is_first = args[0].extended._first_replica_id == 0
    return reduced, of_cores if is_first else {}, others, others_of_cores


def test_hosts_have_the_same_outputs(
    strategy: TPUStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(context: Any, inputs: Any) -> None:
        context.set_last_step_output("loss", inputs)

    monkeypatch.setattr(remote, "loop", fewer_outputs)
    iterator = iter(strategy.experimental_distribute_dataset([torch.zeros(4)]))
    with pytest.raises(MalformedStreamError, match=r"task:1 returned .* outputs of other names"):
        strategy.extended.experimental_run_steps_on_iterator(step, iterator, 1)
