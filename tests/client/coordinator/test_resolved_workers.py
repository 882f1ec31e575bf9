"""Workers that join and leave as the resolver of the cluster says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stratagem import ClusterSpec
from stratagem._coordinator.monitor import workers_of
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_proto.errors import (
    InvalidArgumentError,
    UnavailableError,
)
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.client.coordinator.here import Gate
from tests.client.coordinator.whereabouts import gone_through, ran_on_each
from tests.conftest import TOKEN
from tests.waiting import eventually


class Directory(SimpleClusterResolver):
    """A resolver whose workers change."""

    def __init__(self, cluster: ClusterSpec) -> None:
        super().__init__(cluster, task_type="chief", task_id=0)
        self.workers = workers_of(SimpleClusterResolver(cluster))
        self.fails = False

    def cluster_spec(self) -> ClusterSpec:
        if self.fails:
            raise UnavailableError("the directory is closed")
        jobs: dict[str, Any] = self._cluster_spec.as_dict()
        return ClusterSpec({**jobs, "worker": dict(self.workers)})


@contextmanager
def directed(num_workers: int) -> Iterator[tuple[Coordination, Directory]]:
    """A program whose resolver is asked again and again."""
    with coordinating(
        num_workers=num_workers, resolver=Directory, resolver_seconds=0.01
    ) as coordination:
        directory = coordination.strategy.cluster_resolver
        assert isinstance(directory, Directory)
        yield coordination, directory


def test_workers_join_and_leave_as_the_resolver_says() -> None:
    with directed(num_workers=2) as (coordination, directory):
        coordinator = coordination.coordinator
        eventually(lambda: coordinator.workers == [0, 1])
        directory.workers[4] = coordination.start_new(4)
        eventually(lambda: coordinator.workers == [0, 1, 4])
        del directory.workers[0]
        eventually(lambda: coordinator.workers == [1, 4])
        assert ran_on_each(coordination, 2) == {1, 4}


def test_a_worker_that_moves_leaves_and_joins() -> None:
    with directed(num_workers=1) as (coordination, directory):
        coordinator = coordination.coordinator
        gate = Gate()
        value = coordinator.schedule(gone_through, args=(gate,))
        gate.wait_for()
        elsewhere = WorkerServer(WorkerSettings(task=0, token=TOKEN))
        with elsewhere:
            directory.workers[0] = elsewhere.address
            eventually(lambda: 0 in coordinator._dispatch._queue.leaving)
            gate.open()
            assert value.fetch() == 0
            coordination.stop(0)
            assert ran_on_each(coordination, 1) == {0}


def test_what_the_program_decides_stands_until_the_resolver_changes() -> None:
    with directed(num_workers=2) as (coordination, directory):
        coordinator = coordination.coordinator
        coordinator.remove_worker(0)
        coordinator.add_worker(coordination.start_new(5))
        directory.workers[6] = coordination.start_new(6)
        eventually(lambda: coordinator.workers == [1, 5, 6])
        directory.workers[5] = "elsewhere.test:1"
        del directory.workers[0]
        del directory.workers[6]
        eventually(lambda: coordinator.workers == [1, 5])


def test_a_resolver_that_fails_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with directed(num_workers=1) as (coordination, directory):
        coordinator = coordination.coordinator
        directory.fails = True
        eventually(lambda: "the directory is closed" in caplog.text)
        directory.workers[1] = coordination.start_new(1)
        directory.fails = False
        eventually(lambda: coordinator.workers == [0, 1])
    warnings = [one for one in caplog.messages if "directory is closed" in one]
    assert len(warnings) == 1


def test_a_late_worker_that_cannot_be_used_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stranger = WorkerServer(WorkerSettings(task=1, token="another cluster's secret"))
    with stranger, directed(num_workers=1) as (coordination, directory):
        coordinator = coordination.coordinator
        eventually(lambda: coordinator.workers == [0])
        directory.workers[1] = stranger.address
        eventually(lambda: "/job:worker/task:1 cannot join" in caplog.text)
        assert ran_on_each(coordination, 1) == {0}
        coordinator.join()


def test_a_time_between_looks_is_positive() -> None:
    with (
        pytest.raises(InvalidArgumentError, match="resolver_seconds is 0"),
        coordinating(num_workers=1, resolver_seconds=0),
    ):
        pass
