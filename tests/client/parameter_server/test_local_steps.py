"""Steps that workers take by themselves, and what they share every now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch.optim import SGD

import stratagem
from stratagem import (
    DistributedOptimizer,
    InvalidArgumentError,
    InvalidTypeError,
    LocalSteps,
    ParameterServerStrategy,
)
from stratagem._hosting.local_steps import OuterOptimizer, _divided
from stratagem.nn import DynamicEmbedding
from stratagem.optim import DelayedNesterov
from tests.client.clusters import Cluster, running
from tests.client.networks import loss_of, network, training_step
from tests.faults import CutAt, FaultyProxy, Verdict

SIZE, LR, EVERY = 70, 0.125, 3
BYTES = 2 * SIZE * 4
WORKERS, ROUNDS = 2, 4
PLAIN: OuterOptimizer = partial(SGD, lr=1.0)
NESTEROV: OuterOptimizer = partial(SGD, lr=0.7, momentum=0.9, nesterov=True)


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.ones(SIZE)) for _ in range(2))


def gradient(worker: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * worker + step)
    return torch.randn(2, SIZE, generator=generator)


class Worker:
    """Trains two vectors by gradients that are given."""

    def __init__(self, strategy: ParameterServerStrategy, number: int, **settings: Any) -> None:
        self.strategy, self.number, self.taken = strategy, number, 0
        with strategy.scope():
            self.model = Vectors()
        self.optimizer = LocalSteps(SGD(self.model.parameters(), lr=LR), **settings)

    def step(self) -> None:
        def replica_step() -> None:
            each = zip(self.model.parameters(), gradient(self.number, self.taken), strict=True)
            for parameter, found in each:
                parameter.grad = found
            self.optimizer.step()

        self.strategy.run(replica_step)
        self.taken += 1

    def values(self) -> NDArray[np.float32]:
        return np.stack([one.detach().numpy() for one in self.model.parameters()])


# The same in NumPy: workers take EVERY steps of SGD each, and then share their differences.


class Reference:
    """The servers' values, and how a difference that is shared moves them."""

    def __init__(self) -> None:
        self.values: NDArray[Any] = np.ones((2, SIZE), np.float32)
        self.momentum: NDArray[Any] = np.zeros_like(self.values)
        self.sum: NDArray[Any] = np.zeros_like(self.values)
        self.shares = 0

    def nesterov(self, difference: NDArray[Any], lr: float = 0.7, beta: float = 0.9) -> None:
        self.momentum = beta * self.momentum + difference
        self.values = self.values - lr * (difference + beta * self.momentum)

    def plain(self, difference: NDArray[Any]) -> None:
        self.values = self.values - difference

    def delayed(self, difference: NDArray[Any], delay: int = 2, spread: float = 0.25) -> None:
        self.sum, self.shares = self.sum + difference, self.shares + 1
        share = spread
        if self.shares % delay == 0:
            self.momentum = 0.9 * self.momentum + self.sum / delay
            self.sum, share = self.sum * 0, 1 - spread * (delay - 1)
        self.values = self.values - 0.7 * (share * 0.9 * self.momentum + difference / delay)


def local_round(values: NDArray[Any], worker: int, number: int) -> NDArray[Any]:
    for step in range(EVERY * number, EVERY * (number + 1)):
        values = values - LR * gradient(worker, step).numpy()
    return values


_OUTER: dict[str, tuple[dict[str, Any], Callable[[Reference, NDArray[Any]], None]]] = {
    "nesterov": ({"outer": NESTEROV}, Reference.nesterov),
    "plain": ({"outer": PLAIN}, Reference.plain),
    "delayed": ({"outer": partial(DelayedNesterov, delay=2, spread=0.25)}, Reference.delayed),
}


def shared_rounds(
    strategy: ParameterServerStrategy, number: int, in_turns: bool, **settings: Any
) -> list[NDArray[Any]]:
    """What a worker has after each share; differences come in the order of the workers."""
    worker, found = Worker(strategy, number, every=EVERY, **settings), []
    for _ in range(ROUNDS):
        for turn in range(WORKERS):
            if turn == number:
                for _ in range(EVERY):
                    worker.step()
                found.append(worker.values())
            if in_turns:
                strategy.barrier("turn")
    return found


@pytest.mark.parametrize("name", _OUTER)
@pytest.mark.parametrize("consistency", ["async", "bounded"])
def test_servers_apply_differences_one_by_one(name: str, consistency: str) -> None:
    settings, apply = _OUTER[name]
    program = partial(shared_rounds, in_turns=True, **settings)
    with running(num_workers=WORKERS) as cluster:
        found = cluster.run(program, consistency=consistency)
    reference = Reference()
    starts = [reference.values] * WORKERS
    for number in range(ROUNDS):
        for worker, start in enumerate(starts):
            apply(reference, start - local_round(start, worker, number))
            starts[worker] = reference.values
            np.testing.assert_allclose(found[worker][number], reference.values, atol=1e-5)


@pytest.mark.parametrize("name", _OUTER)
def test_servers_apply_the_mean_of_differences_that_workers_share_together(name: str) -> None:
    settings, apply = _OUTER[name]
    program = partial(shared_rounds, in_turns=False, **settings)
    with running(num_workers=WORKERS) as cluster:
        found = cluster.run(program, consistency="sync")
    reference = Reference()
    for number in range(ROUNDS):
        start = reference.values
        ends = [local_round(start, worker, number) for worker in range(WORKERS)]
        apply(reference, np.mean([start - end for end in ends], axis=0))
        for worker in range(WORKERS):
            np.testing.assert_allclose(found[worker][number], reference.values, atol=1e-5)


def quantized(value: NDArray[Any], levels: int) -> NDArray[Any]:
    """What arrives of each row in so many levels to either side of 0."""
    scale = np.abs(value).max(1, keepdims=True) / np.float32(levels)
    found: NDArray[Any] = np.round(value / scale) * scale
    return found


@pytest.mark.parametrize(("compression", "levels"), [("int8", 127), ("int4", 7)])
@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_what_compression_loses_of_a_difference_comes_with_the_next_one(
    consistency: str, compression: str, levels: int
) -> None:
    in_turns = consistency == "async"
    program = partial(shared_rounds, in_turns=in_turns, outer=NESTEROV, compression=compression)
    with running(num_workers=WORKERS) as cluster:
        found = cluster.run(program, consistency=consistency)
    reference, lost = Reference(), np.zeros((WORKERS, 2, SIZE), np.float32)
    starts = [reference.values] * WORKERS
    for number in range(ROUNDS):
        sent = []
        for worker, start in enumerate(starts):
            whole = start - local_round(start, worker, number) + lost[worker]
            sent.append(quantized(whole, levels))
            lost[worker] = whole - sent[worker]
            if in_turns:
                reference.nesterov(sent[worker])
                starts[worker] = reference.values
        if not in_turns:
            reference.nesterov(np.mean(sent, axis=0))
            starts = [reference.values] * WORKERS
        for worker in range(WORKERS):
            np.testing.assert_allclose(found[worker][number], starts[worker], atol=1e-5)


@pytest.mark.parametrize(("compression", "levels"), [("int8", 127), ("int4", 7)])
@pytest.mark.parametrize("goes_on_with", ["servers", "checkpoint"])
def test_what_compression_loses_comes_with_the_next_share_also_over_a_restart(
    tmp_path: Path, goes_on_with: str, compression: str, levels: int
) -> None:
    reference, lost = Reference(), np.zeros((2, SIZE), np.float32)
    settings = {"outer": NESTEROV, "every": EVERY, "compression": compression, "keep_state": 1}

    def round_of(cluster: Cluster, number: int) -> NDArray[np.float32]:
        with cluster.strategy() as strategy:
            worker = Worker(strategy, 0, **settings)
            if number and goes_on_with == "checkpoint":
                strategy.restore(tmp_path)
            worker.taken = EVERY * number
            for _ in range(EVERY):
                worker.step()
            strategy.save(tmp_path)
            return worker.values()

    with ExitStack() as clusters:
        cluster = clusters.enter_context(running())
        for number in range(ROUNDS):
            if goes_on_with == "checkpoint":
                cluster = clusters.enter_context(running())
            found = round_of(cluster, number)
            start = reference.values
            whole = start - local_round(start, 0, number) + lost
            sent = quantized(whole, levels)
            lost = whole - sent
            reference.nesterov(sent)
            np.testing.assert_allclose(found, reference.values, atol=1e-5)


def test_steps_of_one_and_sgd_that_adds_differences_train_as_the_servers_alone() -> None:
    def trained(wrap: Callable[[SGD], Any]) -> list[torch.Tensor]:
        with running() as cluster, cluster.strategy() as strategy:
            with strategy.scope():
                model = network()
            # A difference is exact where a value does not halve, and so is what it leads to.
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(2)
            step = training_step(model, wrap(SGD(model.parameters(), lr=1e-3)))
            for _ in range(50):
                strategy.run(step)
            return [parameter.detach().clone() for parameter in model.parameters()]

    servers = trained(DistributedOptimizer)
    shared = trained(lambda sgd: LocalSteps(sgd, PLAIN, every=1))
    assert all(map(torch.equal, servers, shared))


@pytest.mark.parametrize(
    ("workers", "consistency", "expected"),
    [(1, "async", (0.7, 0.9)), (2, "sync", (0.7, 0.9)), (2, "async", (0.5, 0))],
)
def test_workers_that_share_one_by_one_have_no_momentum_and_their_part(
    workers: int, consistency: str, expected: tuple[float, float]
) -> None:
    with running(num_workers=workers) as cluster, cluster.strategy(consistency=consistency) as one:
        (outer,) = Worker(one, 0, every=1).optimizer.outer
        assert type(outer._inner) is SGD
        assert (outer.defaults["lr"], outer.defaults["momentum"]) == expected


def test_nothing_is_sent_between_shares() -> None:
    with running() as cluster, cluster.strategy() as strategy:
        worker = Worker(strategy, 0, every=50)
        worker.step()
        before = strategy.traffic()
        for _ in range(48):
            worker.step()
        # Leases are renewed.
        assert (strategy.traffic() - before).sent_bytes < BYTES
        worker.step()
        assert (strategy.traffic() - before).sent_bytes > BYTES


def test_what_a_share_brings_does_not_come_again_because_others_have_shared_since() -> None:
    with running(num_workers=2) as cluster, ExitStack() as stack:
        strategies = [stack.enter_context(cluster.strategy(worker)) for worker in range(2)]
        first, second = (
            Worker(strategy, number, outer=PLAIN, every=1)
            for number, strategy in enumerate(strategies)
        )
        first.step()
        second.step()
        (outer,) = first.optimizer.outer
        other = stack.enter_context(ThreadPoolExecutor(1))
        outer.register_step_post_hook(lambda *_: other.submit(second.step).result(60))
        before = strategies[0].traffic()
        first.step()
        came = (strategies[0].traffic() - before).received_bytes
        assert BYTES <= came < 2 * BYTES
        # What the second one has shared comes with the next share.
        at_that_time = second.values()
        first.optimizer.adopt()
        np.testing.assert_array_equal(first.values(), at_that_time)


def test_fragments_are_shared_one_after_the_other() -> None:
    with running() as cluster, cluster.strategy() as strategy:
        worker = Worker(strategy, 0, outer=partial(SGD, lr=0.5), every=4, fragments=2)
        stayed, halved = [], torch.ones(2, SIZE)
        for step in range(8):
            halved = halved - LR * gradient(0, step)
            if step % 4 == 1:
                halved[0] = (_shared(worker, 0) + halved[0]) / 2
            if step % 4 == 3:
                halved[1] = (_shared(worker, 1) + halved[1]) / 2
            worker.step()
            stayed.append(np.allclose(worker.values(), halved.numpy(), atol=1e-6))
        assert all(stayed)


def fragments_of(strategy: ParameterServerStrategy, number: int) -> list[NDArray[Any]]:
    """What a worker has after each of some steps, two parts of which are shared by turns."""
    worker, found = Worker(strategy, number, outer=partial(SGD, lr=0.5), every=4, fragments=2), []
    for _ in range(8):
        worker.step()
        found.append(worker.values())
    return found


def test_workers_share_the_same_fragment_together() -> None:
    with running(num_workers=WORKERS) as cluster:
        found = cluster.run(fragments_of, consistency="sync")
    shared = np.ones((2, SIZE), np.float32)
    own = np.stack([shared] * WORKERS)
    for step in range(8):
        own -= LR * np.stack([gradient(worker, step).numpy() for worker in range(WORKERS)])
        if step % 2:
            part = step % 4 // 2
            shared[part] -= 0.5 * (shared[part] - own[:, part].mean(0))
            own[:, part] = shared[part]
        for worker in range(WORKERS):
            np.testing.assert_allclose(found[worker][step], own[worker], atol=1e-5)


def _shared(worker: Worker, place: int) -> torch.Tensor:
    """What the servers have of a fragment's only parameter."""
    (parameter,) = worker.optimizer.outer[place].param_groups[0]["params"]
    value: torch.Tensor = parameter.detach().clone()
    return value


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.data())
def test_fragments_have_all_parameters_once_and_none_is_empty(
    sizes: Sequence[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    parts = _divided(sizes, count)
    assert [place for part in parts for place in part] == [*range(len(sizes))]
    assert len(parts) == count and all(parts)


def test_steps_may_be_counted_in_seconds() -> None:
    with running() as cluster, cluster.strategy() as strategy:
        worker = Worker(strategy, 0, outer=PLAIN, seconds=1e-9)
        before = strategy.traffic()
        worker.step()
        assert (strategy.traffic() - before).sent_bytes > BYTES
        never = Worker(strategy, 0, outer=PLAIN, seconds=1e9)
        before = strategy.traffic()
        never.step()
        assert (strategy.traffic() - before).sent_bytes < BYTES


def shared_by_time(
    strategy: ParameterServerStrategy, number: int, pauses: Sequence[float]
) -> list[int]:
    """How many local steps some shares have, between which only those change the values."""
    worker, steps = Worker(strategy, number, outer=PLAIN, seconds=0.3), [0]
    strategy.barrier("made")
    local: NDArray[Any] = worker.values()
    while len(steps) <= ROUNDS:
        time.sleep(pauses[number])
        local = local - LR * gradient(number, worker.taken).numpy()
        before = strategy.traffic().sent_bytes
        worker.step()
        steps[-1] += 1
        if strategy.traffic().sent_bytes > before + BYTES:
            local = worker.values()
            steps.append(0)
        else:
            np.testing.assert_allclose(worker.values(), local, atol=1e-5)
    return steps[:-1]


def test_slow_workers_take_fewer_steps_between_shares_by_time() -> None:
    with running(num_workers=2) as cluster:
        fast, slow = cluster.run(partial(shared_by_time, pauses=(0.001, 0.1)))
    assert max(slow) <= 4
    assert sum(fast) > 2 * sum(slow)


def test_a_worker_that_joins_begins_with_what_the_servers_have() -> None:
    with running(num_workers=2) as cluster, ExitStack() as stack:
        first = Worker(stack.enter_context(cluster.strategy(0)), 0, outer=PLAIN, every=EVERY)
        for _ in range(EVERY + 1):
            first.step()
        second = Worker(stack.enter_context(cluster.strategy(1)), 1, outer=PLAIN, every=EVERY)
        np.testing.assert_allclose(
            second.values(), local_round(np.ones((2, SIZE), np.float32), 0, 0), rtol=1e-5, atol=1e-6
        )


def test_a_checkpoint_has_the_servers_values_and_a_restored_one_is_adopted(tmp_path: Path) -> None:
    with running() as cluster, cluster.strategy() as strategy:
        worker = Worker(strategy, 0, outer=PLAIN, every=EVERY)
        for _ in range(EVERY):
            worker.step()
        saved = worker.values()
        worker.step()  # stays here
        strategy.save(tmp_path)
        for _ in range(2 * EVERY):
            worker.step()
        strategy.restore(tmp_path)
        worker.taken = EVERY
        for _ in range(EVERY):
            worker.step()
        np.testing.assert_allclose(worker.values(), local_round(saved, 0, 1), atol=1e-5)


@pytest.mark.parametrize("verdict", [Verdict.CUT_WITHIN, Verdict.CUT_AFTER])
def test_a_share_whose_answer_is_lost_counts_once(verdict: Verdict) -> None:
    with running(1) as inner, FaultyProxy(inner.servers[0]) as proxy:
        with Cluster([proxy.address], 1).strategy() as strategy:
            worker = Worker(strategy, 0, outer=PLAIN, every=EVERY)
            expected = worker.values()
            for number in range(6):
                proxy.judge = CutAt(number, verdict)
                for _ in range(EVERY):
                    worker.step()
                expected = local_round(expected, 0, number)
                np.testing.assert_allclose(worker.values(), expected, rtol=1e-5, atol=1e-6)
            proxy.judge = CutAt(-1)
        assert proxy.cuts > 1


def test_after_a_share_that_failed_the_next_one_begins_anew() -> None:
    with (
        running(1) as inner,
        FaultyProxy(inner.servers[0]) as proxy,
        Cluster([proxy.address], 1).strategy(connect_seconds=0.5) as strategy,
    ):
        worker = Worker(strategy, 0, outer=PLAIN, every=EVERY)
        for _ in range(EVERY - 1):
            worker.step()
        trained = worker.values()
        proxy.judge = lambda _: Verdict.CUT_AFTER
        with pytest.raises(stratagem.StratagemError):
            worker.optimizer.share()
        proxy.judge = CutAt(-1)
        worker.step()
        last = LR * gradient(0, EVERY - 1).numpy()
        found = [np.allclose(worker.values(), one - last, atol=1e-5) for one in (1, trained)]
        assert any(found)


def test_a_strategy_without_a_cluster_has_a_server_of_its_own(tmp_path: Path) -> None:
    strategy = ParameterServerStrategy()
    worker = Worker(strategy, 0, outer=NESTEROV, every=EVERY)
    reference = Reference()
    for number in range(2):
        for _ in range(EVERY):
            worker.step()
        end = local_round(reference.values, 0, number)
        reference.nesterov(reference.values - end)
        np.testing.assert_allclose(worker.values(), reference.values, atol=1e-5)
    strategy.save(tmp_path)
    worker.step()
    strategy.restore(tmp_path)
    worker.taken = 2 * EVERY
    for _ in range(EVERY):
        worker.step()
    reference.nesterov(reference.values - local_round(reference.values, 0, 2))
    np.testing.assert_allclose(worker.values(), reference.values, atol=1e-5)


def test_schedulers_and_the_state_are_those_of_the_wrapped_optimizer() -> None:
    with running() as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = network()
        adam = torch.optim.Adam(model.parameters(), lr=1e-2)
        optimizer = LocalSteps(adam, every=10)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        step = training_step(model, optimizer)
        strategy.run(step)
        schedule.step()
        assert adam.param_groups[0]["lr"] == 5e-3
        state = optimizer.state_dict()
        assert state["state"][0]["step"] == 1
        optimizer.load_state_dict(state)
        assert loss_of(model).isfinite()


def test_what_the_program_writes_is_not_shared_as_if_it_had_been_trained() -> None:
    with running() as cluster, cluster.strategy() as strategy:
        worker = Worker(strategy, 0, every=EVERY)
        worker.step()
        with torch.no_grad():
            worker.model.first.zero_()
        with pytest.raises(stratagem.FailedPreconditionError, match="were written by the program"):
            worker.step()
        worker.optimizer.adopt()
        assert (worker.values() == 1).all()
        worker.optimizer.share()


def _made(cluster: Cluster, **settings: Any) -> None:
    with cluster.strategy() as strategy:
        Worker(strategy, 0, **settings)


def _wrap_table(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        with strategy.scope():
            table = DynamicEmbedding(4)
        LocalSteps(SGD(table.parameters(), lr=LR), every=1)


def _wrap_mirrored(_: Cluster) -> None:
    with stratagem.MirroredStrategy(["cpu:0"]).scope():
        model = Vectors()
    LocalSteps(SGD(model.parameters(), lr=LR), every=1)


def _wrap_several_replicas(cluster: Cluster) -> None:
    stratagem.config.set_logical_cpus(2)
    try:
        _wrap_in_two_replicas(cluster)
    finally:
        stratagem.config.set_logical_cpus(1)


def _wrap_in_two_replicas(cluster: Cluster) -> None:
    with cluster.strategy(num_replicas_per_worker=2) as strategy:
        with strategy.scope():
            model = Vectors()
        LocalSteps(SGD(model.parameters(), lr=LR), every=1)


def _wrap_half(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        with strategy.scope():
            model = Vectors()
        LocalSteps(SGD([model.first, nn.Parameter(torch.ones(1))], lr=LR), every=1)


def _wrap_plain(_: Cluster) -> None:
    LocalSteps(SGD(Vectors().parameters(), lr=LR), every=1)


def _wrap_beside_the_scope(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        model = Vectors()
        with strategy.scope():
            LocalSteps(SGD(model.parameters(), lr=LR), every=1)


_REFUSED: dict[str, tuple[Callable[[Cluster], object], type[Exception], str]] = {
    "neither": (_made, InvalidArgumentError, "give one of both"),
    "both": (partial(_made, every=1, seconds=1.0), InvalidArgumentError, "give one of both"),
    "zero": (partial(_made, every=0), InvalidArgumentError, "every is 0"),
    "negative": (partial(_made, seconds=-1.0), InvalidArgumentError, "seconds is -1.0"),
    "fragments": (partial(_made, every=1, fragments=3), InvalidArgumentError, "choose 1 to 2"),
    "outer": (partial(_made, every=1, outer=list), InvalidTypeError, "outer makes"),
    "table": (_wrap_table, InvalidArgumentError, "is a table"),
    "mirrored": (_wrap_mirrored, InvalidArgumentError, "needs ParameterServerStrategy"),
    "replicas": (_wrap_several_replicas, InvalidArgumentError, "one replica in each worker"),
    "half": (_wrap_half, InvalidArgumentError, "several strategies"),
    "plain": (_wrap_plain, InvalidArgumentError, "belong to no strategy"),
    "beside": (_wrap_beside_the_scope, InvalidArgumentError, "belong to no strategy"),
}


@pytest.mark.parametrize("what", _REFUSED)
def test_what_cannot_be_meant_is_refused(what: str) -> None:
    wrap, error, message = _REFUSED[what]
    with running() as cluster, pytest.raises(error, match=message):
        wrap(cluster)


def test_no_optimizer_is_wrapped_and_no_group_is_added() -> None:
    with pytest.raises(InvalidTypeError, match=r"wraps a torch.optim.Optimizer"):
        LocalSteps(3, every=1)  # type: ignore[arg-type]
    with ParameterServerStrategy().scope():
        model = Vectors()
    optimizer = LocalSteps(SGD(model.parameters(), lr=LR), every=1)
    with pytest.raises(InvalidArgumentError, match="no further param groups"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
