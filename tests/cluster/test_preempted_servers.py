"""Parameter-server processes that go away while a program coordinates workers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from stratagem import PSUnavailableError, SessionLostError
from stratagem_deploy import LocalCluster
from tests.cluster.interventions import beside
from tests.cluster.preemption import (
    Preemptions,
    Training,
    process_of,
    training_on,
)
from tests.stopping import stopped

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints") / "run"


@pytest.fixture(scope="module")
def cluster(checkpoints: Path) -> Iterator[LocalCluster]:
    with LocalCluster(ps=2, worker_servers=2, processes=True, restore=checkpoints) as running:
        yield running


@pytest.fixture(autouse=True)
def without_checkpoints(checkpoints: Path) -> Iterator[None]:
    """Lets each test begin without checkpoints."""
    yield
    shutil.rmtree(checkpoints, ignore_errors=True)


@pytest.fixture
def impatient(preemptions: Preemptions) -> Iterator[Training]:
    """A program that does not wait long for its servers."""
    with training_on(preemptions.cluster, connect_seconds=1.0) as found:
        yield found


def test_a_server_that_is_stopped_for_a_while_is_waited_for(
    training: Training, preemptions: Preemptions
) -> None:
    values = training.run_endlessly(10)
    with stopped(process_of("ps", 0)):
        time.sleep(3)
    training.join()
    assert training.ended == training.begun == 10
    assert len(set(training.coordinator.fetch(values))) == 2


def test_functions_go_on_when_a_server_has_gone_back_to_a_checkpoint(
    training: Training, preemptions: Preemptions, checkpoints: Path
) -> None:
    training.schedule(3)
    training.join()
    training.run_endlessly(10)
    training.strategy.save(checkpoints)
    preemptions.restart("ps", 0)
    training.join()
    assert training.ended == training.begun == 13


@pytest.mark.parametrize("report", ["join", "schedule"])
def test_a_server_that_stays_away_is_reported(
    impatient: Training, preemptions: Preemptions, report: str
) -> None:
    values = impatient.run_endlessly(10)
    preemptions.kill("ps")
    with pytest.raises(PSUnavailableError, match="/job:ps/task:0") as lost:
        values[0].fetch()
    assert "/job:worker" not in str(lost.value)
    arguments = () if report == "join" else (torch.ones, (1,))
    with pytest.raises(PSUnavailableError, match="/job:ps/task:0"):
        getattr(impatient.coordinator, report)(*arguments)
    assert impatient.coordinator.schedule(torch.ones, args=(1,)).fetch() == 1


def test_later_functions_too_tell_that_a_server_is_away(
    impatient: Training, preemptions: Preemptions
) -> None:
    impatient.run_endlessly(10)
    for server in range(2):
        preemptions.kill("ps", server)
    with pytest.raises(PSUnavailableError, match="/job:ps/task:"):
        impatient.coordinator.join()
    read = impatient.iterations.read_value
    values = [impatient.coordinator.schedule(read) for _ in range(4)]
    for value in values:
        with pytest.raises(PSUnavailableError, match="/job:ps/task:1"):
            value.fetch()


def test_a_server_that_lost_its_variables_is_reported(
    training: Training, preemptions: Preemptions
) -> None:
    training.run_endlessly(10)
    preemptions.restart("ps")
    with pytest.raises(SessionLostError, match=r"/job:ps/task:0.*was restarted"):
        training.coordinator.join()


def test_a_server_and_a_worker_are_lost_together(
    training: Training, preemptions: Preemptions
) -> None:
    training.run_endlessly(10)
    worker, server = (partial(preemptions.restart, job) for job in ("worker", "ps"))
    lost = r"/job:ps/task:0.*was restarted"
    with beside(worker), beside(server), pytest.raises(SessionLostError, match=lost):
        training.coordinator.join()
