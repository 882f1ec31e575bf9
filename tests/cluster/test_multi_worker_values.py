"""Values that workers without servers reduce and gather."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import IndexedSlices, Mirrored, MultiWorkerMirroredStrategy
from stratagem_proto.errors import AbortedError, InvalidArgumentError
from tests.cluster.two_workers import on_two_workers, replica, worker

pytestmark = pytest.mark.cluster

Strategy = MultiWorkerMirroredStrategy


@pytest.mark.spec("LOC-8")
def test_replicas_are_numbered_over_all_workers() -> None:
    def see(strategy: Strategy) -> Any:
        numbers = strategy.run(replica)
        return strategy.num_replicas_in_sync, strategy.experimental_local_results(numbers)

    assert on_two_workers(see) == [(4, (0, 1)), (4, (2, 3))]
    assert on_two_workers(see, cpus=1) == [(2, (0,)), (2, (1,))]


@pytest.mark.spec("STR-12")
def test_the_first_worker_is_the_chief() -> None:
    def see(strategy: Strategy) -> Any:
        extended = strategy.extended
        with strategy.scope():
            home = extended._current_device()
        flags = extended.should_checkpoint, extended.should_save_summary
        return extended.worker_devices[1], home, *flags

    name = "/job:worker/replica:0/task:{}/device:CPU:{}"
    assert on_two_workers(see) == [
        (name.format(0, 1), name.format(0, 0), True, True),
        (name.format(1, 1), name.format(1, 0), False, False),
    ]


DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.int16)


@pytest.mark.parametrize("cpus", [1, 2])
def test_values_of_any_type_are_reduced_over_all_replicas(cpus: int) -> None:
    def reduce(strategy: Strategy) -> Any:
        def fn() -> Any:
            number = replica()
            return {dtype: torch.tensor([number, 1], dtype=dtype) for dtype in DTYPES}

        values = strategy.run(fn)
        return [strategy.reduce(op, values, axis=None) for op in ("sum", "mean")]

    replicas = 2 * cpus
    for total, mean in on_two_workers(reduce, cpus):
        for dtype in DTYPES:
            assert total[dtype].dtype == dtype
            assert total[dtype].tolist() == [sum(range(replicas)), replicas]
            floating = dtype if dtype.is_floating_point else torch.float64
            assert mean[dtype].dtype == floating
            assert mean[dtype].tolist() == [sum(range(replicas)) / replicas, 1]


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_mean_over_an_axis_weighs_every_element_alike(cpus: int) -> None:
    def reduce(strategy: Strategy) -> Any:
        values = strategy.run(lambda: torch.full((replica() + 1,), replica() * 1.0))
        return [strategy.reduce(op, values, axis=0).item() for op in ("sum", "mean")]

    rows = [number for number in range(2 * cpus) for _ in range(number + 1)]
    expected = [sum(rows), pytest.approx(sum(rows) / len(rows))]
    assert on_two_workers(reduce, cpus) == [expected, expected]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gathering_takes_parts_of_different_lengths(axis: int) -> None:
    def gather(strategy: Strategy) -> Any:
        def fn() -> torch.Tensor:
            shape = [2, 2]
            shape[axis] = replica()
            return torch.full(shape, replica())

        return strategy.gather(strategy.run(fn), axis).tolist()

    parts = [[number] * number for number in (1, 2, 3)]
    row = [number for part in parts for number in part]
    expected = [row, row] if axis else [[number] * 2 for number in row]
    assert on_two_workers(gather) == [expected, expected]


def test_rows_stay_sparse() -> None:
    def reduce(strategy: Strategy) -> Any:
        def fn() -> Any:
            number = replica()
            rows = torch.full((number, 2), float(number))
            slices = IndexedSlices(rows, torch.arange(number), (5, 2))
            context = stratagem.get_replica_context()
            assert context is not None
            return context.all_reduce("mean", slices)

        total = strategy.experimental_local_results(strategy.run(fn))[0]
        assert isinstance(total, IndexedSlices)
        return total.indices.tolist(), total.to_dense()[:, 0].tolist()

    expected = [0, 0, 1, 0, 1, 2], [1.5, 1.25, 0.75, 0.0, 0.0]
    assert on_two_workers(reduce) == [expected, expected]


@pytest.mark.parametrize("cpus", [1, 2])
def test_gradients_flow_through_all_workers(cpus: int) -> None:
    def differentiate(strategy: Strategy) -> Any:
        def fn() -> Any:
            context = stratagem.get_replica_context()
            assert context is not None
            x = torch.full((replica() + 1,), 1.0 + replica(), requires_grad=True)
            joined = context.all_gather(x, axis=0)
            total = context.all_reduce("sum", joined * joined)
            (gradient,) = torch.autograd.grad(total.sum(), x)
            return joined.tolist(), gradient

        joined, gradient = strategy.run(fn)
        local = strategy.experimental_local_results(gradient)
        return strategy.experimental_local_results(joined)[0], [each.tolist() for each in local]

    replicas = 2 * cpus
    rows = [1.0 + n for n in range(replicas) for _ in range(n + 1)]
    results = on_two_workers(differentiate, cpus)
    for number, (joined, gradients) in enumerate(results):
        assert joined == rows
        for local, gradient in enumerate(gradients):
            own = number * cpus + local
            # Both the gathering and the reduction add up over all replicas.
            expected = 2.0 * (1 + own) * replicas * replicas
            assert gradient == [expected] * (own + 1)


def test_several_values_are_reduced_at_once() -> None:
    def reduce(strategy: Strategy) -> Any:
        a, b = strategy.run(lambda: (torch.tensor(replica()), torch.ones(2)))
        pairs = [(a, "CPU:0"), (b, b)]
        total, copies = strategy.extended.batch_reduce_to("sum", pairs)
        assert isinstance(copies, Mirrored)
        return total.item(), [each.tolist() for each in copies.values]

    assert on_two_workers(reduce) == [(6, [[4.0, 4.0], [4.0, 4.0]])] * 2


def test_what_is_the_same_everywhere_has_a_mean_but_no_sum() -> None:
    def reduce(strategy: Strategy) -> Any:
        with pytest.raises(ValueError, match="non-DistributedValues"):
            strategy.reduce("sum", 2.0, axis=None)
        return strategy.reduce("mean", 2.0, axis=None)

    assert on_two_workers(reduce) == [2.0, 2.0]


@pytest.mark.parametrize("cpus", [1, 2])
def test_what_is_one_object_on_one_worker_differs_from_that_of_the_other(cpus: int) -> None:
    """Small integers of Python are one object each, so that counts often are."""

    def reduce(strategy: Strategy) -> Any:
        counts = strategy.run(lambda: 2 + worker(strategy))
        few = strategy.run(lambda: 7 if worker(strategy) else replica())
        return [float(strategy.reduce("mean", value, axis=None)) for value in (counts, few)]

    second = sum([*range(cpus), *[7] * cpus]) / (2 * cpus)
    assert on_two_workers(reduce, cpus) == [[2.5, second]] * 2


def test_the_sum_of_what_is_one_object_on_one_worker_is_refused_on_both() -> None:
    def reduce(strategy: Strategy) -> Any:
        count = strategy.run(lambda: replica() if worker(strategy) else 7)
        with pytest.raises(InvalidArgumentError, match="one value for all replicas") as refused:
            strategy.reduce("sum", count, axis=None)
        return bool(refused)

    assert on_two_workers(reduce) == [True, True]


@pytest.mark.parametrize("wrap", [float, torch.tensor], ids=["number", "tensor"])
def test_a_plain_value_is_gathered_if_it_is_that_of_all_workers(wrap: Any) -> None:
    def gather(strategy: Strategy) -> Any:
        own, same = wrap(2.0 + worker(strategy)), wrap(7.0)
        with pytest.raises(InvalidArgumentError, match="gathered differs between the workers"):
            strategy.gather(strategy.run(lambda: own), axis=0)
        return float(strategy.gather(strategy.run(lambda: same), axis=0))

    assert on_two_workers(gather) == [7.0, 7.0]


def test_values_of_different_shapes_are_refused_on_every_worker() -> None:
    def reduce(strategy: Strategy) -> Any:
        values = strategy.run(lambda: torch.ones(1 + worker(strategy)))
        with pytest.raises(InvalidArgumentError, match=r"task:0 has .*\[1\].*task:1"):
            strategy.reduce("sum", values, axis=None)
        # Nothing was sent, so that the workers can go on.
        return strategy.reduce("sum", values, axis=0).item()

    assert on_two_workers(reduce) == [6.0, 6.0]


def test_workers_that_do_different_things_are_told() -> None:
    def part(strategy: Strategy) -> None:
        values = strategy.run(lambda: torch.ones(1))
        if worker(strategy):
            strategy.reduce("sum", values, axis=None)
        else:
            strategy.gather(values, axis=0)

    with pytest.raises(AbortedError, match=r"not at the same point.*gathered.*reduced"):
        on_two_workers(part)
