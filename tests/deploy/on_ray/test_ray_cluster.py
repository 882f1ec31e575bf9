"""Clusters of actors, with real Ray."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import stratagem
from examples import movielens, resuming
from stratagem.cluster_resolver import ClusterResolver
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import RayCluster
from stratagem_proto.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)
from tests.waiting import eventually

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(400),
    # Ray's own warnings, of its own calls.
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("ray"),
]


def test_the_documented_program_trains_the_demo_to_its_error(tmp_path: Path) -> None:
    page = (ROOT / "docs/deploying.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?RayCluster.*?)^```", page, re.DOTALL | re.M)
    ran: dict[str, Any] = {}
    exec(program.replace("/shared/movielens", str(tmp_path)), ran)
    first, second = ran["errors"]
    assert first == second == pytest.approx(0.91, abs=0.015)
    plain = movielens.Recommender()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    held_out = movielens.load_ratings()[: movielens.HELD_OUT]
    assert movielens.rmse(plain, held_out) == first


def test_sets_have_one_order_in_all_workers() -> None:
    def order(resolver: ClusterResolver) -> list[str]:
        return list({str(number) for number in range(100)})

    with RayCluster(ps=0, workers=2) as cluster:
        first, second = cluster.run(order)
    assert first == second


@contextmanager
def squatter(address: str) -> Iterator[None]:
    """Takes an address as soon as it is free, and answers nobody."""
    host, _, port = address.rpartition(":")
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def bound() -> bool:
        try:
            taken.bind((host, int(port)))
        except OSError:
            return False
        return True

    eventually(bound)
    with taken:
        taken.listen()
        threading.Thread(target=hang_up, args=(taken,), daemon=True).start()
        yield


def hang_up(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            listener.accept()[0].close()


def count_up(resolver: ClusterResolver, folder: Path) -> tuple[float, float, str]:
    """Adds one until the file `enough` is there, past what was saved at ten."""
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        with strategy.scope():
            counters = [stratagem.Variable(0.0, name=f"on{ps}") for ps in range(2)]
        for step in range(1, 1_000_000):
            for counter in counters:
                counter.assign_add(1.0)
            if step == 10:
                strategy.save(folder / "run")
                (folder / "saved").touch()
            if (folder / "enough").exists():
                break
        addresses = resolver.cluster_spec().as_dict()["ps"]
        kept, restored = (float(counter.numpy()) for counter in counters)
        return kept - step, restored - step, addresses[1]


def test_a_killed_server_goes_on_from_its_checkpoint_at_another_address(
    tmp_path: Path,
) -> None:
    with RayCluster(ps=2, restore=tmp_path / "run") as cluster:
        spec = cluster.resolver("ps", 1).cluster_spec()
        before = spec.task_address("ps", 1)
        results: list[Any] = []
        program = threading.Thread(target=lambda: results.append(cluster.run(count_up, tmp_path)))
        program.start()
        eventually((tmp_path / "saved").exists, seconds=120)
        cluster.kill("ps", 1)
        with squatter(before):
            resolver = cluster.resolver("ps", 1)
            eventually(
                lambda: resolver.cluster_spec().task_address("ps", 1) != before,
                seconds=120,
            )
            (tmp_path / "enough").touch()
            program.join()
    ((kept, restored, after),) = results[0]
    assert after != before
    assert kept == 0.0
    assert restored <= 0.0  # what came after the checkpoint is lost, once


def once_more(resolver: ClusterResolver, folder: Path) -> list[float]:
    """Ends its process when it is made for the first time."""
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        with strategy.scope():
            counter = stratagem.Variable(0.0)
        counter.assign_add(1.0)
        if not (folder / "tried").exists():
            (folder / "tried").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [float(counter.numpy())]


def test_a_worker_whose_process_ends_runs_again_on_the_same_variables(
    tmp_path: Path,
) -> None:
    with RayCluster() as cluster:
        assert cluster.run(once_more, tmp_path) == [[2.0]]


def test_a_failed_program_shows_where_and_leaves_the_cluster_usable() -> None:
    def fail(resolver: ClusterResolver) -> None:
        if resolver.task_id == 1:
            raise ValueError("no such film")
        time.sleep(600)

    def place(resolver: ClusterResolver, greeting: str) -> tuple[str, int | None, int]:
        return greeting, resolver.task_id, resolver.cluster_spec().num_tasks("worker")

    with RayCluster(ps=0, workers=2) as cluster:
        with pytest.raises(ValueError, match="no such film") as raised:
            cluster.run(fail)
        cause = raised.value.__cause__
        assert isinstance(cause, AbortedError)
        assert "worker:1 failed" in str(cause)
        assert 'raise ValueError("no such film")' in str(cause)
        assert cluster.run(place, "hello") == [("hello", 0, 2), ("hello", 1, 2)]
        with pytest.raises(FailedPreconditionError, match="has no process now"):
            cluster.kill("worker", 0)
        with pytest.raises(InvalidArgumentError, match="no task ps:0"):
            cluster.kill("ps", 0)


def test_a_worker_that_keeps_ending_is_given_up() -> None:
    with RayCluster(restarts=1) as cluster, pytest.raises(AbortedError) as raised:
        cluster.run(lambda resolver: os.kill(os.getpid(), signal.SIGKILL))
    assert "worker:0 ended without a result" in str(raised.value)


def test_worker_servers_serve_a_coordinator() -> None:
    with (
        RayCluster(ps=1, worker_servers=2) as cluster,
        stratagem.ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        with strategy.scope():
            counter = stratagem.Variable(0.0)
        coordinator = ClusterCoordinator(strategy)

        def add() -> None:
            counter.assign_add(1.0)

        for _ in range(6):
            coordinator.schedule(add)
        coordinator.join()
        assert counter.numpy() == 6.0


def test_what_ray_has_no_room_for_is_an_error_with_the_amounts() -> None:
    crowd = RayCluster(workers=2, worker_resources={"CPU": 5, "GPU": 1}, start_timeout=1.0)
    with pytest.raises(ResourceExhaustedError) as raised, crowd:
        pass
    assert "CPU 11 of 8, 8 free, GPU 2 of 0, 0 free" in str(raised.value)
    with RayCluster(ps=1, workers=1):
        pass  # nothing of it was kept


def test_memory_is_reserved_as_processors_are(ray: Any) -> None:
    before = ray.cluster_resources()["memory"]
    with RayCluster(ps_resources={"CPU": 1, "memory": 1e8}):
        assert ray.available_resources()["memory"] <= before - 1e8


def update_both(resolver: ClusterResolver) -> list[float]:
    """Adds to two variables, and returns what is there then."""
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        with strategy.scope():
            users = stratagem.Variable(0.0, name="users")
            items = stratagem.Variable(0.0, name="items")
        with suppress(PermissionDeniedError):
            items.assign_add(1.0)
        users.assign_add(1.0)
        strategy.barrier()
        return [float(users.numpy()), float(items.numpy())]


def test_servers_refuse_what_a_policy_does_not_allow(tmp_path: Path) -> None:
    policy = tmp_path / "policy.txt"
    policy.write_text("worker/1 may read, assign, update users\nworker/1 may read items\n")
    with RayCluster(ps=1, workers=2, policy=policy) as cluster:
        # Worker 0 is the chief, of whom no rule speaks.
        assert cluster.run(update_both) == [[2.0, 1.0]] * 2


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "run"
    broken.mkdir()
    (broken / "latest").write_text("nonsense")
    with pytest.raises(stratagem.UnavailableError) as raised:
        RayCluster(restore=broken).__enter__()
    assert "ps:0 ended before it served" in str(raised.value)


def trained(folder: Path, deaths: int) -> resuming.Result:
    """What the program to copy says at its end, where workers die, and all tasks at last."""
    options = resuming.Options(epochs=6, save_every=2, ratings=16_000)
    checkpoints, chance = folder / "checkpoints", random.Random(deaths)

    def progress() -> str:
        return (checkpoints / "latest").read_text() if (checkpoints / "latest").exists() else ""

    with (
        suppress(AbortedError, UnavailableError),
        RayCluster(ps=2, workers=2, restore=checkpoints, restarts=100) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        ran = pool.submit(cluster.run, resuming.train, folder, options)
        for _ in range(deaths):
            before = progress()
            eventually(lambda: ran.done() or progress() != before, seconds=240)  # noqa: B023
            if ran.done():
                break
            with suppress(FailedPreconditionError):  # it is being started again
                cluster.kill("worker", chance.randrange(2))
        if not deaths:
            quiet: resuming.Result = ran.result()[0]
            return quiet
        cluster.__exit__(None, None, None)
    with RayCluster(ps=2, workers=2, restore=checkpoints) as cluster:
        last: resuming.Result = cluster.run(resuming.train, folder, options)[0]
        return last


def test_the_program_to_copy_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    for name in ("quiet", "killed"):
        (tmp_path / name).mkdir()
    assert trained(tmp_path / "killed", 6) == trained(tmp_path / "quiet", 0)
