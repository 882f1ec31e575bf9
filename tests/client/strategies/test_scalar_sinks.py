"""Functions that get the numbers of a program."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch

import stratagem
from stratagem._core.scalars import Scalars
from stratagem._parameter_server.attached import AttachedStrategy
from stratagem_proto.errors import ContextError, FailedPreconditionError, InvalidTypeError
from tests.client.clusters import running
from tests.conftest import TOKEN

Taken = list[tuple[int, Mapping[str, float]]]


@pytest.fixture
def strategy() -> stratagem.Strategy:
    return stratagem.OneDeviceStrategy("CPU:0")


@pytest.fixture
def taken(strategy: stratagem.Strategy) -> Taken:
    """What a sink of the strategy gets."""
    got: Taken = []
    strategy.log_to(lambda step, scalars: got.append((step, scalars)))
    return got


def test_a_sink_gets_all_numbers_with_their_steps(
    strategy: stratagem.Strategy, taken: Taken
) -> None:
    strategy.log({"loss": torch.tensor([2.0]), "rate": 1})
    strategy.log({"loss": 1.0})
    strategy.log({"loss": 0.5}, step=100)
    strategy.log({"loss": 0.25})
    assert taken == [
        (0, {"loss": 2.0, "rate": 1.0}),
        (1, {"loss": 1.0}),
        (100, {"loss": 0.5}),
        (101, {"loss": 0.25}),
    ]
    assert {type(value) for _, scalars in taken for value in scalars.values()} == {float}


def test_a_sink_that_is_removed_gets_nothing_more(strategy: stratagem.Strategy) -> None:
    got: list[int] = []
    with strategy.log_to(lambda step, _: got.append(step)):
        strategy.log({"loss": 1.0})
    strategy.log({"loss": 1.0})
    assert got == [0]


def test_a_sink_that_raises_is_told_of_now_and_then_and_ends_nothing(
    strategy: stratagem.Strategy, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[int] = []

    def full(step: int, scalars: Mapping[str, float]) -> None:
        raise OSError("no space left")

    strategy.log_to(full)
    strategy.log_to(lambda step, _: got.append(step))
    with caplog.at_level(logging.WARNING, "stratagem"):
        for number in range(12):
            strategy.log({"loss": number})
    assert got == [*range(12)]
    first, tenth = caplog.records
    assert first.getMessage().startswith("failure 1 of the sink 'test_a_sink_that_raises")
    assert tenth.getMessage().startswith("failure 10 of ")
    assert "may have lost the numbers of step 9;" in tenth.getMessage()
    assert "OSError: no space left" in caplog.text


def test_a_sink_may_be_interrupted(strategy: stratagem.Strategy) -> None:
    def interrupted(step: int, scalars: Mapping[str, float]) -> None:
        raise KeyboardInterrupt

    strategy.log_to(interrupted)
    with pytest.raises(KeyboardInterrupt):
        strategy.log({"loss": 1.0})


def test_what_a_sink_does_to_its_numbers_is_its_own(
    strategy: stratagem.Strategy, taken: Taken
) -> None:
    def greedy(step: int, scalars: Any) -> None:
        scalars.clear()

    strategy.log_to(greedy)
    strategy.log_to(lambda step, scalars: taken.append((step, scalars)))
    strategy.log({"loss": 1.0})
    assert taken == [(0, {"loss": 1.0})] * 2


def test_only_the_chief_calls_sinks() -> None:
    with running(1, 2) as cluster:
        got: list[int] = []

        def note(worker: int, step: int, scalars: Mapping[str, float]) -> None:
            got.append(worker)

        for worker in range(2):
            with cluster.strategy(worker) as strategy:
                handle = strategy.log_to(partial(note, worker))
                strategy.log({"loss": 1.0})
                handle.remove()
    assert got == [0]


def test_several_replicas_do_not_log_under_one_name() -> None:
    stratagem.config.set_logical_cpus(2)
    strategy = stratagem.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(ContextError, match=r"one of 2 replicas.*strategy\.reduce"):
        strategy.run(lambda: strategy.log({"loss": 1.0}))


def test_a_lone_replica_logs(strategy: stratagem.Strategy, taken: Taken) -> None:
    strategy.run(lambda: strategy.log({"loss": 1.0}))
    assert taken == [(0, {"loss": 1.0})]


def test_what_is_no_sink_is_refused(strategy: stratagem.Strategy) -> None:
    with pytest.raises(InvalidTypeError, match="not dict; for an object give its method"):
        strategy.log_to({})  # type: ignore[arg-type]


@pytest.mark.parametrize("scalars", [{7: 1.0}, {"loss": torch.ones(2)}])
def test_what_is_refused_reaches_no_sink_and_takes_no_step(
    scalars: Any, strategy: stratagem.Strategy, taken: Taken
) -> None:
    with pytest.raises(InvalidTypeError):
        strategy.log(scalars)
    with pytest.raises(InvalidTypeError, match=r"is an integer, not 1\.5"):
        strategy.log({"loss": 1.0}, step=1.5)  # type: ignore[arg-type]
    strategy.log({"loss": 1.0})
    assert taken == [(0, {"loss": 1.0})]


def test_another_strategy_has_sinks_of_its_own(strategy: stratagem.Strategy, taken: Taken) -> None:
    copy.deepcopy(strategy).log({"loss": 1.0})
    assert taken == []


def test_a_scheduled_function_is_no_place_for_a_sink() -> None:
    with running(1, 1) as cluster:
        attached = AttachedStrategy(cluster.resolver(), token=TOKEN)
        with pytest.raises(FailedPreconditionError, match="in the coordinator's program"):
            attached.log_to(print)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_number_on_a_gpu_is_read_without_waiting() -> None:
    scalars = Scalars()
    scalars.log({"loss": torch.tensor(1.0, device="cuda")})
    torch.cuda.synchronize()
    assert scalars.latest() == {"loss": 1.0}
    torch.cuda._sleep(2_000_000_000)
    scalars.log({"loss": torch.tensor(2.0, device="cuda")})
    assert scalars.latest() == {"loss": 1.0}
    torch.cuda.synchronize()
    assert scalars.latest() == {"loss": 2.0}
