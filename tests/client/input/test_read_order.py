"""Workers that divide one dataset read each row once, or are told that they would not."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
)

from stratagem import (
    AutoShardPolicy,
    DistributedIterator,
    InputContext,
    InvalidArgumentError,
    OneDeviceStrategy,
    Strategy,
    StrategyExtended,
)
from stratagem._input.pipeline import InputPipeline, splitting_pipeline
from stratagem._input.read_order import ContentsDigest, digest_of_indices
from stratagem._input.sharding import InputWorker
from stratagem_proto.input_order import BatchRead
from stratagem_proto.v1.consistency_pb2 import InputDigest
from stratagem_proto.v1.session_pb2 import ROLE_WORKER, Task
from stratagem_psserver.consistency.barriers import InputOrders
from stratagem_psserver.exactly_once.sessions import Session
from tests.client.batches import Numbers, Streamed, batches
from tests.full import examples


class ReportingExtended(StrategyExtended):
    """That of a worker which reports what it reads to others in this process."""

    def __init__(self, strategy: Strategy, orders: InputOrders, number: int) -> None:
        super().__init__(strategy)
        self._orders, self._is_first = orders, True
        self._session = Session(bytes([number]), ROLE_WORKER, Task(job="worker", index=number))

    def _input_left(self, here: bool, read: BatchRead | None) -> bool:
        if read is not None:
            digest = InputDigest(
                dataset=read.dataset, batch=read.batch, digest=read.digest, first=self._is_first
            )
            setattr(digest, "pass", read.pass_number)
            self._orders.report(self._session, [digest])
            self._is_first = False
        return here


class Reporting(Strategy):
    def __init__(self, orders: InputOrders, number: int) -> None:
        super().__init__(ReportingExtended(self, orders, number))


class Worker:
    """One of several workers that divide a dataset."""

    def __init__(self, orders: InputOrders, number: int, workers: int) -> None:
        self.strategy = Reporting(orders, number)
        context = InputContext(workers, number, workers)
        self.reader = InputWorker(context, (None,), seed=lambda: 5, number=0)

    def pipeline(
        self, dataset: Any, policy: AutoShardPolicy = AutoShardPolicy.DATA
    ) -> InputPipeline:
        return splitting_pipeline(dataset, self.reader, policy=policy)


def each_worker(
    workers: int, make: Callable[[int], Any], looks: Sequence[bool], passes: int
) -> list[list[list[int]]]:
    """Return the rows that each worker reads in each pass, all a batch at a time."""
    orders = InputOrders()
    everyone = [Worker(orders, number, workers) for number in range(workers)]
    pipelines = [one.pipeline(make(number)) for number, one in enumerate(everyone)]
    seen: list[list[list[int]]] = [[[] for _ in range(passes)] for _ in everyone]
    for number in range(passes):
        for pipeline, look in zip(pipelines, looks, strict=True):
            if look:
                assert pipeline.spec.shape == (None,)
        iterators = [
            DistributedIterator(one.strategy, pipeline)
            for one, pipeline in zip(everyone, pipelines, strict=True)
        ]
        going = list(range(workers))
        while going:
            for worker in list(going):
                part = next(iterators[worker], None)
                if part is None:
                    going.remove(worker)
                else:
                    seen[worker][number] += part.tolist()
    return seen


class Shuffled(Sampler[int]):
    """Draws from a generator that it keeps, of Python or of NumPy, or from that of the process."""

    def __init__(self, count: int, own: Any = random) -> None:
        self._count, self._own = count, own

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        rows = list(range(self._count))
        self._own.shuffle(rows)
        return iter(rows)


class ShuffledStream(IterableDataset[int]):
    def __init__(self, count: int, own: Any) -> None:
        self._count, self._own = count, own

    def __iter__(self) -> Iterator[int]:
        rows = list(range(self._count))
        self._own.shuffle(rows)
        return iter(rows)


class OneShot:
    """Goes on where it was left, as a stream does."""

    def __init__(self, elements: Sequence[Any]) -> None:
        self._elements = iter(elements)

    def __iter__(self) -> Iterator[Any]:
        return self._elements


class Noisy:
    """Collates as workers do that augment by generators of their own."""

    def __init__(self, worker: int) -> None:
        self._own = random.Random(worker)

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        self._own.shuffle(samples)
        return torch.stack(samples)


def whole(count: int, size: int) -> list[torch.Tensor]:
    return [torch.arange(at, min(at + size, count)) for at in range(0, count, size)]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# By a name: the data of a worker, given (number of rows, rows in a batch, the worker's seed).
KINDS: dict[str, Callable[[int, int, int], Any]] = {
    "list": lambda n, b, _: whole(n, b),
    "loader": lambda n, b, _: batches(n, b),
    "shuffling": lambda n, b, _: batches(n, b, shuffle=True),
    "generator": lambda n, b, s: batches(n, b, shuffle=True, generator=seeded(s)),
    "random": lambda n, b, _: batches(n, b, sampler=Shuffled(n)),
    "own random": lambda n, b, s: batches(n, b, sampler=Shuffled(n, random.Random(s))),
    "NumPy": lambda n, b, s: batches(n, b, sampler=Shuffled(n, np.random.RandomState(s))),
    "batches": lambda n, b, s: DataLoader(
        Numbers(n), batch_sampler=BatchSampler(Shuffled(n, random.Random(s)), b, False)
    ),
    "given batches": lambda n, b, _: DataLoader(
        Numbers(n), batch_sampler=[one.tolist() for one in whole(n, b)]
    ),
    "lists of indices": lambda n, b, s: DataLoader(
        cast(Any, torch.arange(n)),
        batch_size=None,
        sampler=BatchSampler(RandomSampler(range(n), generator=seeded(s)), b, False),
    ),
    "other collating": lambda n, b, s: batches(
        n, b, shuffle=True, generator=seeded(s), collate_fn=torch.stack
    ),
    "stream": lambda n, b, s: DataLoader(ShuffledStream(n, random.Random(s)), b),
    "unshuffled stream": lambda n, b, _: Streamed(whole(n, b)),
    "generator function": lambda n, b, _: lambda: (each for each in whole(n, b)),
    "one shot": lambda n, b, _: OneShot(whole(n, b)),
    "shorter": lambda n, b, s: OneShot(whole(n - s % 2, b)),
    "one-shot sampler": lambda n, b, _: batches(n, b, sampler=OneShot(range(n))),
    "divided": lambda n, b, s: batches(n, b, sampler=DistributedSampler(Numbers(n), 2, s % 2)),
}

# These give their rows once, whoever asks again.
ONCE = {"one shot", "shorter", "one-shot sampler"}


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_each_row_is_read_once_or_the_workers_are_told(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    workers, count = data.draw(st.integers(2, 3)), data.draw(st.integers(4, 14))
    size, passes = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 2))
    looks = data.draw(st.lists(st.booleans(), min_size=workers, max_size=workers))
    alike = data.draw(st.booleans())
    random.seed(data.draw(st.integers(0, 9)))
    try:
        seen = each_worker(
            workers, lambda number: KINDS[kind](count, size, 0 if alike else number), looks, passes
        )
    except InvalidArgumentError as error:
        assert "reads part" in str(error) or "/job:worker/task:" in str(error)
        assert kind in ("random", "divided") or not alike
        return
    for number in range(passes):
        rows = Counter(row for worker in seen for row in worker[number])
        assert rows == Counter(range(count if number == 0 or kind not in ONCE else 0)), kind


@pytest.mark.parametrize("kind", ["generator", "own random", "NumPy", "stream", "batches"])
def test_the_first_batch_that_differs_is_named_with_both_workers(kind: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        each_worker(2, lambda number: KINDS[kind](12, 4, number), [False, False], 1)
    message = str(raised.value)
    assert "/job:worker/task:1 and /job:worker/task:0" in message
    assert "batch 0 of pass 0" in message
    assert "torch.Generator of one seed" in message


def test_a_worker_whose_data_end_first_is_named() -> None:
    make = lambda number: whole(12 - 4 * number, 4)  # noqa: E731
    expected = "task:0 has batch 2 of pass 0 .* but /job:worker/task:1 has come to the end"
    with pytest.raises(InvalidArgumentError, match=expected):
        each_worker(2, make, [False, False], 1)


def test_what_a_worker_makes_of_samples_may_differ() -> None:
    """Augmentation by generators of each worker is no other order."""
    for stream in (False, True):

        def make(number: int, stream: bool = stream) -> DataLoader[Any]:
            data: Any = Streamed([torch.tensor(row) for row in range(12)])
            return DataLoader(data if stream else Numbers(12), 4, collate_fn=Noisy(number))

        assert len(each_worker(2, make, [False, False], 2)) == 2


def test_files_in_another_order_are_told() -> None:
    orders = InputOrders()

    def read(number: int, files: Sequence[str]) -> list[Any]:
        worker = Worker(orders, number, 2)
        pipeline = worker.pipeline(OfFiles(files), AutoShardPolicy.FILE)
        return [part.tolist() for part in DistributedIterator(worker.strategy, pipeline)]

    assert read(0, ["/here/a", "/here/b"]) == [[1]]
    assert read(1, ["/there/a", "/there/b"]) == [[1]]
    with pytest.raises(InvalidArgumentError, match="different lists of the files"):
        read(1, ["/here/b", "/here/a"])


class OfFiles:
    def __init__(self, files: Sequence[str]) -> None:
        self.files = files

    def with_files(self, files: Sequence[str]) -> OfFiles:
        return OfFiles(files)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.tensor([len(self.files)])])


def test_digests_tell_orders_apart_and_know_the_same_again() -> None:
    assert digest_of_indices([1, 2]) == digest_of_indices((np.int64(1), torch.tensor(2))) != 0
    assert digest_of_indices([1, 2]) != digest_of_indices([2, 1])
    assert digest_of_indices([[1, 2]]) == digest_of_indices([[1, 2]])
    assert digest_of_indices(["a", ("b", 1)]) != digest_of_indices(["a", ("b", 2)])
    assert digest_of_indices([object()]) == digest_of_indices([object()])


def digest(*elements: Any) -> int:
    """Return the digest of the last of the elements of a pass."""
    digests = ContentsDigest()
    return [digests.of_batch(each) for each in elements][-1]


def test_floating_point_values_count_where_nothing_else_tells_rows_apart() -> None:
    noise, labels, mask = torch.rand(4), torch.arange(4), torch.ones(4, dtype=torch.int64)
    assert digest((noise, labels)) == digest((noise + 1, labels)) != digest((noise, labels + 1))
    assert digest((noise, mask)) != digest((noise + 1, mask))
    assert digest((noise, None)) != digest((noise + 1, None))
    # Once labels have told rows apart, a batch of one class is enough.
    first = (noise, labels)
    assert digest(first, (noise, mask)) == digest(first, (noise + 1, mask))
    assert digest((noise, mask), (noise, mask)) != digest((noise, mask), (noise + 1, mask))


def test_samples_count_before_they_are_collated() -> None:
    def of(*samples: Any) -> int:
        return ContentsDigest().of_samples(samples)

    assert of({"x": 0.5, "y": 1}, {"x": 0.5, "y": 2}) == of({"x": 1.5, "y": 1}, {"x": 2.5, "y": 2})
    assert of({"x": 0.5, "y": 1}, {"x": 0.5, "y": 1}) != of({"x": 1.5, "y": 1}, {"x": 2.5, "y": 1})
    assert of("a", "b") != of("b", "a")
    assert of(torch.tensor(1), np.float32(2)) != of(torch.tensor(1), np.float32(3))
    assert of(object(), None) == 0


def test_contents_of_all_kinds_are_told_apart() -> None:
    large, noise = torch.arange(1_000_000).reshape(1000, 1000), torch.rand(4)
    assert digest(large) != digest(large.flip(0))
    assert digest(torch.zeros(2, 0)) != digest(torch.zeros(3, 0))
    texts = np.array(["a", "b"], dtype=object)
    assert digest(texts) != digest(texts[::-1])
    ragged = torch.nested.nested_tensor([noise, noise[:2]], layout=torch.jagged)
    for other in (
        noise,
        noise.to_sparse(),
        noise.bool(),
        noise.to(torch.complex64),
        noise.bfloat16(),
        noise.double().numpy(),
        ragged,
        torch.tensor(2.5),
    ):
        assert digest(other) == digest(other) != digest([other, other])


@pytest.mark.parametrize("policy", [AutoShardPolicy.AUTO, AutoShardPolicy.OFF])
def test_a_loader_that_is_divided_already_is_refused_unless_each_reads_its_own(
    policy: AutoShardPolicy,
) -> None:
    loader = batches(8, 2, sampler=DistributedSampler(Numbers(8), 2, 1, shuffle=False))
    strategy = OneDeviceStrategy("CPU:0")
    if policy is AutoShardPolicy.OFF:
        own = strategy.experimental_distribute_dataset(loader, auto_shard_policy=policy)
        assert [part.tolist() for part in own] == [[1, 3], [5, 7]]
        return
    with pytest.raises(InvalidArgumentError, match="DistributedSampler reads part 1 of 2"):
        strategy.experimental_distribute_dataset(loader)
    whole = strategy.distribute_datasets_from_function(lambda _: loader)
    assert [part.tolist() for part in whole] == [[1, 3], [5, 7]]


class Sharded(IterableDataset[int]):
    """As libraries divide a stream among processes."""

    def __init__(self) -> None:
        self.num_processes, self.process_index = 4, 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(2))


def test_streams_that_are_divided_already_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="Sharded reads part 0 of 4"):
        OneDeviceStrategy("CPU:0").experimental_distribute_dataset(DataLoader(Sharded(), 2))


def test_data_that_workers_divide_travel() -> None:
    for dataset in (whole(4, 4), batches(4, 4)):
        pipeline = pickle.loads(pickle.dumps(Worker(InputOrders(), 1, 2).pipeline(dataset)))
        (round_,) = pipeline.open()
        assert [part.tolist() for part in round_.parts] == [[2, 3]]
