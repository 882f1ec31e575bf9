"""Failures on hosts, and the errors that the program gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    ClosureInputError,
    ClusterSpec,
    TPUStrategy,
    UnauthenticatedError,
    UnavailableError,
    Variable,
    WorkerLostError,
)
from stratagem._shipping.kinds import Parcel
from stratagem._tpu.remote import RemoteCores
from stratagem._tpu.session import connected
from stratagem.cluster_resolver import SimpleClusterResolver, TPUClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_rpc.channel import Deadlines
from tests.client.hosts.signals import BEGUN, begin
from tests.interrupts import interrupt, interruptible


class Unloadable:
    def __getstate__(self) -> dict[str, int]:
        return {"needs": 1}

    def __setstate__(self, state: dict[str, int]) -> None:
        raise ValueError("not here")


def steps(strategy: TPUStrategy, step: Any, count: int = 4) -> None:
    iterator = iter(strategy.experimental_distribute_dataset([torch.zeros(4)] * count))
    strategy.extended.experimental_run_steps_on_iterator(step, iterator, count)


def test_an_error_of_all_hosts_is_raised_once_and_loses_nothing(
    strategy: TPUStrategy,
) -> None:
    with strategy.scope():
        v = Variable(0.0, trainable=False)

    def step(context: Any, inputs: Any) -> None:
        v.assign_add(1.0)
        if v.read_value() == 3:
            raise KeyError("the third step")

    with pytest.raises(KeyError, match="the third step") as caught:
        steps(strategy, step)
    assert "a call on host 0" in str(caught.value.__cause__)
    assert 'raise KeyError("the third step")' in str(caught.value.__cause__)
    assert v.read_value().item() == 3
    assert strategy.run(lambda: 1) == 1


def test_an_error_of_one_host_ends_the_session_of_all(strategy: TPUStrategy) -> None:
    with strategy.scope():
        v = Variable(0.0, trainable=False)

    def step(context: Any, inputs: Any) -> None:
        if strategy.extended._first_replica_id:
            raise KeyError("the second host")

    with pytest.raises(KeyError, match="the second host"):
        steps(strategy, step)
    with pytest.raises(UnavailableError, match=r"not in step.*experimental_initialize"):
        strategy.run(lambda: 1)
    v.assign(2.0)
    strategy.extended.connect()
    assert strategy.reduce("sum", strategy.run(v.read_value), axis=None).item() == 8


def test_what_cannot_be_loaded_on_hosts_is_told_and_the_session_goes_on(
    strategy: TPUStrategy,
) -> None:
    with pytest.raises(ClosureInputError, match="ValueError: not here"):
        strategy.run(lambda x: x, (Unloadable(),))
    assert strategy.run(lambda: 1) == 1


def test_an_interrupted_program_leaves_the_hosts_free(strategy: TPUStrategy) -> None:
    def step(context: Any, inputs: Any) -> None:
        begin()

    iterator = iter(strategy.experimental_distribute_dataset(_Endless()))
    with interruptible(), as_soon_as_it_has_begun(interrupt), pytest.raises(KeyboardInterrupt):
        strategy.extended.experimental_run_steps_on_iterator(step, iterator, 10**6)
    with pytest.raises(UnavailableError, match="the program was interrupted"):
        strategy.run(lambda: 1)
    strategy.extended.connect()
    assert strategy.run(lambda: 1) == 1


class _InterruptedAfterOne(list[Parcel]):
    """Parcels of which the first is sent before the program is interrupted."""

    def __iter__(self) -> Iterator[Parcel]:
        yield self[0]
        raise KeyboardInterrupt


def _for_ever() -> None:
    while True:
        time.sleep(0.01)


def test_a_program_that_is_interrupted_as_it_calls_leaves_the_hosts_free(
    strategy: TPUStrategy,
) -> None:
    session = cast(RemoteCores, strategy.extended._cores).session
    endless = session._closure_pickler.dump(_for_ever)
    with pytest.raises(KeyboardInterrupt):
        session._group.call(_InterruptedAfterOne([endless, endless]))
    with pytest.raises(UnavailableError, match="the program was interrupted"):
        strategy.run(lambda: 1)
    strategy.extended.connect()
    assert strategy.run(lambda: 1) == 1


@contextmanager
def as_soon_as_it_has_begun(action: Callable[[], object]) -> Iterator[None]:
    """Scope in which something is done when a step calls `begin`."""

    def act() -> None:
        assert BEGUN.wait(60)
        action()

    BEGUN.clear()
    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def test_functions_on_hosts_make_nothing(strategy: TPUStrategy) -> None:
    def step() -> None:
        with strategy.scope():
            Variable(0.0)

    with pytest.raises(ValueError, match="task:0, where each call would make another"):
        strategy.run(lambda: Variable(0.0))
    with pytest.raises(RuntimeError):
        strategy.run(step)


def test_what_is_of_another_strategy_does_not_travel(strategy: TPUStrategy) -> None:
    with stratagem.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        foreign = Variable(0.0)
    with pytest.raises(TypeError, match="of another strategy"):
        strategy.run(lambda: foreign.read_value())
    own = Variable(2.0)
    assert strategy.run(lambda: own.read_value().item()) == 2
    with strategy.scope():
        model = nn.Linear(1, 1)
    with pytest.raises(TypeError, match="cannot be pickled"):
        strategy.run(lambda lock: model, (threading.Lock(),))


def test_outputs_that_cannot_be_sent_are_named(strategy: TPUStrategy) -> None:
    def step(context: Any, inputs: Any) -> None:
        context.set_non_tensor_output("lock", threading.Lock())

    with pytest.raises(TypeError, match=r"the result.*\['lock'\] is a _thread.lock, which"):
        steps(strategy, step, 1)


def test_a_host_that_is_lost_is_named() -> None:
    with LocalCluster(ps=0, worker_servers=2) as cluster:
        strategy = TPUStrategy(cluster.cluster_resolver, 10)
        with strategy.scope():
            v = Variable(1.0, trainable=False)

        def step(context: Any, inputs: Any) -> None:
            v.assign_add(1.0)
            begin()

        iterator = iter(strategy.experimental_distribute_dataset(_Endless()))
        named = r"/job:worker/task:1.*restore the last checkpoint"
        with (
            as_soon_as_it_has_begun(lambda: cluster.kill("worker", 1)),
            pytest.raises(WorkerLostError, match=named),
        ):
            strategy.extended.experimental_run_steps_on_iterator(step, iterator, 10**6)
        cluster.restart("worker", 1)
        strategy.extended.connect()
        assert strategy.run(lambda: 3) == 3
        strategy.extended.disconnect()


class _Endless:
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.zeros(4)


def test_nothing_is_connected_before_hosts_are_needed() -> None:
    nobody = SimpleClusterResolver(ClusterSpec({"worker": ["127.0.0.1:1"]}))
    strategy = TPUStrategy(nobody, 1)
    assert strategy.extended.get_host_cpu_device(0) == "/job:worker/task:0/device:CPU:0"
    with strategy.scope():
        assert Variable(1.0).read_value().item() == 1
    assert strategy.extended.calls_per_host == 0


def test_hosts_have_to_be_there() -> None:
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 did not answer"):
        connected([(0, "127.0.0.1:1")], "worker", "the cluster's secret", Deadlines(connect=0.3))


def test_hosts_know_who_belongs_to_the_cluster(cluster: LocalCluster) -> None:
    addresses = cluster.cluster_resolver.cluster_spec().job_tasks("worker")
    resolver = TPUClusterResolver(",".join(map(str, addresses)))
    resolver.cluster_token = "another cluster's secret"
    strategy = TPUStrategy(resolver, 1)
    with pytest.raises(UnauthenticatedError):
        strategy.extended.connect()
