"""Rows that come with the push of the step before the one that looks them up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import stratagem
from stratagem import DistributedOptimizer, ParameterServerStrategy, config
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.transport import Style
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, RowIndexError
from stratagem_psserver.tables.table import Table
from tests.client.clusters import Cluster, running
from tests.full import a_few

ROWS, DIM = 20_000, 4


class Training:
    """A table with rows, one with keys, and their optimizer."""

    def __init__(
        self, strategy: ParameterServerStrategy, columns: int = DIM, **limits: Any
    ) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.users = stratagem.nn.Embedding(ROWS, columns)
            self.items = stratagem.nn.DynamicEmbedding(columns, **limits)
        parameters = [*self.users.parameters(), *self.items.parameters()]
        self.optimizer = DistributedOptimizer(torch.optim.Adagrad(parameters, lr=0.3))
        self.more = DistributedOptimizer(torch.optim.SGD(self.users.parameters(), lr=0.1))

    def lookups(self, ids: torch.Tensor) -> list[tuple[nn.Module, torch.Tensor]]:
        return [(self.users, ids), (self.items, ids)]

    def step(self, ids: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = (self.users(ids).sin() * self.items(ids).cos()).sum()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def train(self, ids: torch.Tensor) -> float:
        loss: float = self.strategy.run(self.step, args=(ids,))
        return loss

    def ahead(self, data: Any) -> Any:
        return self.strategy.lookahead(data, self.lookups)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.users(ids), self.items(ids)]).detach()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(2) as cluster:
        yield cluster


@pytest.fixture
def training(strategy: ParameterServerStrategy) -> Training:
    return Training(strategy)


def some_batches(count: int = 12, kinds: int = 150, size: int = 64) -> Any:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(kinds, (size,), generator=generator) for _ in range(count)]


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of all requests that bring values."""
    start, found = Connection.start, list[str]()

    def noted(self: Connection, request: Request[Any], **how: Style) -> Any:
        if request.response_nbytes:
            found.append(request.method)
        return start(self, request, **how)

    monkeypatch.setattr(Connection, "start", noted)
    return found


SETTINGS: list[dict[str, Any]] = [
    {},
    {"fused_steps": False},
    {"consistency": "bounded"},
    {"consistency": "sync"},
    {"pull_dtype": torch.bfloat16},
]


@a_few(
    "limits",
    [{}, {"admit_after": 3}, {"max_idle": 2}, {"max_bytes": 8000}, {"max_idle_seconds": 60}],
    "limits say which rows there are, and not when they come",
    2,
)
@a_few("settings", SETTINGS, "each setting has its own way to push, which tests of pushes take")
def test_a_lone_worker_trains_the_same_bytes_with_it_and_without(
    settings: dict[str, Any], limits: dict[str, int]
) -> None:
    def train(ahead: bool) -> tuple[list[float], torch.Tensor]:
        with running(2) as cluster, cluster.strategy(**settings) as strategy:
            torch.manual_seed(0)
            training = Training(strategy, **limits)
            data = some_batches()
            losses = [training.train(ids) for ids in (training.ahead(data) if ahead else data)]
            return losses, training.rows(torch.arange(150))

    (losses, rows), (expected, expected_rows) = train(True), train(False)
    assert losses == expected
    assert torch.equal(rows, expected_rows)


@pytest.mark.parametrize("fused", [True, False])
def test_values_come_with_the_push_of_the_step_before(
    cluster: Cluster, methods: list[str], fused: bool
) -> None:
    with cluster.strategy(fused_steps=fused) as strategy:
        training = Training(strategy)
        batches = iter(training.ahead(some_batches()))
        training.train(next(batches))
        del methods[:]
        losses = [training.train(ids) for ids in batches]
        assert len(losses) == 11
        # Behind the last one, nothing is looked up.
        assert methods == ["UpdateAndRead"] * 20


def test_a_table_on_a_disk_hears_of_rows_two_steps_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, announce = list[int](), Table.announce

    def noted(table: Table, keys: torch.Tensor) -> None:
        told.append(len(keys))
        announce(table, keys)

    monkeypatch.setattr(Table, "announce", noted)

    def train(ahead: bool, **settings: Any) -> tuple[list[float], torch.Tensor]:
        with running(2, **settings) as cluster, cluster.strategy() as strategy:
            torch.manual_seed(0)
            training, data = Training(strategy, 64), some_batches(30, 5000, 500)
            losses = [training.train(ids) for ids in (training.ahead(data) if ahead else data)]
            return losses, training.rows(torch.arange(5000))

    losses, rows = train(False)
    assert not told
    for ahead in (True, False):
        found, values = train(ahead, table_bytes=1 << 20, table_folder=str(tmp_path))
        assert found == losses
        assert torch.equal(values, rows)
        # Of two tables in two parts; the first answer says that they are on a disk.
        assert len(told) == 4 * 27
    assert train(True)[0] == losses
    assert len(told) == 4 * 27


def in_two_steps(training: Training, ids: torch.Tensor, _: int) -> float:
    training.step(ids)
    return training.step(ids + 1)


def accumulated(training: Training, ids: torch.Tensor, number: int) -> float:
    if number % 3 == 2:
        return training.step(ids)
    loss = training.users(ids).sin().sum()
    loss.backward()
    return float(loss.detach())


def with_two_optimizers(training: Training, ids: torch.Tensor, _: int) -> float:
    loss = training.step(ids)
    training.users(ids + 1).sum().backward()
    training.more.step()
    return loss


@a_few(
    "step",
    [in_two_steps, accumulated, with_two_optimizers],
    "a run with two steps has the longest way back to its rows",
)
def test_it_gives_the_same_bytes_however_often_runs_push(
    step: Callable[[Training, torch.Tensor, int], float],
) -> None:
    def train(ahead: bool) -> list[float]:
        with running(2) as cluster, cluster.strategy() as strategy:
            training, data = Training(strategy), some_batches(7)
            return [
                strategy.run(step, args=(training, ids, number))
                for number, ids in enumerate(training.ahead(data) if ahead else data)
            ]

    assert train(True) == train(False)


def test_rows_that_the_user_has_not_named_are_pulled_when_they_are_looked_up(
    strategy: ParameterServerStrategy,
) -> None:
    training, data = Training(strategy), some_batches(4)
    named = strategy.lookahead(data, lambda ids: [(training.users.weight, ids[:10])])
    losses = [training.train(ids) for ids in named]
    with running(2) as cluster, cluster.strategy() as other:
        expected = Training(other)
        assert losses == [expected.train(ids) for ids in data]


def written(training: Training, _: Path) -> None:
    with torch.no_grad():
        training.users.weight.data[3] = 7.0


def restored(training: Training, folder: Path) -> None:
    training.strategy.restore(folder)


def rolled_back(training: Training, folder: Path) -> None:
    training.strategy.roll_back(folder)


@pytest.mark.parametrize("change", [written, restored, rolled_back])
def test_what_was_asked_for_before_tables_changed_otherwise_is_dropped(
    change: Callable[[Training, Path], None], tmp_path: Path
) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training, ids = Training(strategy), torch.tensor([3, 4])
        training.strategy.restore(training.strategy.save(tmp_path).result() or tmp_path)
        training.train(ids)
        batches = iter(training.ahead([ids, ids]))
        training.train(next(batches))
        next(batches)
        change(training, tmp_path)
        seen = strategy.run(lambda: training.users(ids))
        assert torch.equal(seen, training.users(ids))
        training.strategy.restore(tmp_path)


def stepping(training: Training, ids: torch.Tensor) -> torch.Tensor:
    """Looks at rows, and steps others."""
    seen: torch.Tensor = training.users(ids).detach()
    training.step(ids + 100)
    return seen


@a_few(
    "consistency,is_fresh",
    [("async", False), ("bounded", True), ("sync", True)],
    "the mode decides who waits",
    2,
)
def test_a_step_lacks_what_others_have_done_since_only_where_nobody_waits(
    consistency: str, is_fresh: bool
) -> None:
    ids = torch.tensor([1, 2, 3])
    with running(2, 2) as cluster:

        def look(training: Training) -> bool:
            seen = []
            for number, batch in enumerate(training.ahead([ids, ids + 10, ids])):
                if number == 2:
                    training.strategy.barrier("asked")
                    training.strategy.barrier("written")
                look_up = training.users if is_fresh else partial(stepping, training)
                seen.append(training.strategy.run(look_up, args=(batch,)).detach())
            return torch.equal(seen[2], training.users(ids).detach())

        def write(training: Training) -> bool:
            training.strategy.barrier("asked")
            with torch.no_grad():
                training.users.weight.data[2] += 1.0
            training.strategy.barrier("written")
            return True

        def work(strategy: ParameterServerStrategy, worker: int) -> bool:
            training = Training(strategy)
            strategy.barrier("built")
            return look(training) if worker else write(training)

        found = cluster.run(work, consistency=consistency)
    assert found[1] is is_fresh


class Loader:
    """Gives batches, and raises where it is told to."""

    def __init__(self, failing: int = -1) -> None:
        self.failing = failing

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(5):
            if number == self.failing:
                raise OSError(f"no batch {number}")
            yield torch.tensor([number])


@a_few("failing", [0, 1, 4], "the batch that fails may be any")
@pytest.mark.parametrize("distributed", [True, False])
def test_the_error_of_a_loader_comes_with_its_batch(
    training: Training, failing: int, distributed: bool
) -> None:
    data: Any = Loader(failing)
    if distributed:
        data = training.strategy.experimental_distribute_dataset(data)
    given = []
    with pytest.raises(OSError, match=f"no batch {failing}"):
        for ids in training.ahead(data):
            training.train(ids)
            given.append(int(ids))
    assert given == list(range(failing))


def test_a_batch_may_look_nothing_up(training: Training) -> None:
    none = torch.empty(0, dtype=torch.int64)
    data = [torch.tensor([1]), none, torch.tensor([2]), none]
    assert [training.train(ids) for ids in training.ahead(data)][1::2] == [0.0, 0.0]


def test_data_may_be_empty_or_endless(training: Training) -> None:
    assert [*training.ahead([])] == []
    endless = map(torch.tensor, ([number] for number in itertools.count()))
    given = [int(ids) for ids in itertools.islice(training.ahead(endless), 20)]
    assert given == list(range(20))


def test_a_pass_over_an_iterator_goes_on_where_it_was_left(training: Training) -> None:
    ahead = training.ahead(iter(some_batches(6)))
    assert len([*itertools.islice(ahead, 2)]) == 2
    assert len([*ahead]) == 4
    again = training.ahead(some_batches(6))
    assert [len([*again]), len([*again]), len(again)] == [6, 6, 6]


def test_an_iterator_has_one_lookahead(training: Training) -> None:
    numbers: Any = range(10)
    loader = DataLoader[Any](numbers, batch_size=2)
    for data in (iter(loader), iter(training.strategy.experimental_distribute_dataset(loader))):
        first = training.ahead(data)
        with pytest.raises(InvalidArgumentError, match=r"gone over by another strategy.lookahead"):
            training.ahead(data)
        assert len([*first]) == 5
    both = zip(training.ahead(loader), training.ahead(loader), strict=True)
    assert all(torch.equal(one, other) for one, other in both)


def test_positions_count_what_was_given_out(training: Training) -> None:
    dataset = training.strategy.experimental_distribute_dataset(DataLoader(some_batches(8)))
    iterator = iter(dataset)
    for number, _ in enumerate(training.ahead(iterator)):
        if number == 2:
            break
    state = iterator.state_dict()
    expected = iter(dataset)
    for _ in range(3):
        next(expected)
    assert state == expected.state_dict()
    # Without lookahead it goes on with what was read ahead of it.
    assert torch.equal(next(iterator), next(expected))
    iterator.load_state_dict(state)
    assert [batch.tolist() for batch in training.ahead(iterator)] == [
        batch.tolist() for batch in itertools.chain(itertools.islice(dataset, 3, None))
    ]


def test_a_checkpoint_within_a_loop_has_the_position_of_what_was_trained(
    strategy: ParameterServerStrategy, training: Training, tmp_path: Path
) -> None:
    data = DataLoader(some_batches(8), shuffle=True, generator=torch.Generator().manual_seed(3))
    iterator = iter(strategy.experimental_distribute_dataset(data))
    strategy.register_for_checkpointing("data", iterator)
    trained = []
    for number, ids in enumerate(training.ahead(iterator)):
        training.train(ids)
        trained.append(ids.tolist())
        if number == 3:
            strategy.save(tmp_path)
        if len(trained) == 6:
            strategy.restore(tmp_path)
    assert trained[6:8] == trained[4:6]
    assert len(trained) == 10


def raising(_: torch.Tensor) -> Any:
    raise KeyError("no such column")


@pytest.mark.parametrize(
    ("lookups", "error", "message"),
    [
        (raising, KeyError, "no such column"),
        (lambda ids: None, InvalidTypeError, "gave None; it has to return pairs"),
        (lambda ids: [ids], InvalidTypeError, r"gave tensor\(\[3\]\); it has to return pairs"),
        (lambda ids: [("users", ids)], InvalidTypeError, "gave 'users'; it has to return pairs"),
        (lambda ids: [(nn.ReLU(), ids)], InvalidTypeError, r"gave ReLU\(\); it has to return"),
    ],
)
def test_what_is_no_lookup_is_refused_with_its_batch(
    training: Training, lookups: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    def fails_at_three(ids: torch.Tensor) -> Any:
        return lookups(ids) if int(ids) == 3 else training.lookups(ids)

    given = []
    with pytest.raises(error, match=message):
        for ids in training.strategy.lookahead(Loader(), fails_at_three):
            given.append(int(ids))
    assert given == [0, 1, 2]


def test_inputs_that_are_no_rows_are_refused_with_their_batch(training: Training) -> None:
    def lookups(ids: torch.Tensor) -> Any:
        return [(training.users, ids.float() if int(ids) == 3 else ids)]

    given = []
    with pytest.raises(InvalidTypeError, match=r"'weight' is looked up by a tensor of integers"):
        for ids in training.strategy.lookahead(Loader(), lookups):
            given.append(int(ids))
    assert given == [0, 1, 2]

    for wrong in (ROWS, -1):
        data = [torch.tensor([1]), torch.tensor([wrong]), torch.tensor([2])]
        batches = iter(training.ahead(data))
        training.train(next(batches))
        with pytest.raises(RowIndexError, match=f"rows {wrong} to {wrong}"):
            training.train(next(batches))
        training.train(next(batches))


def test_a_batch_that_was_written_since_it_was_read_is_refused(training: Training) -> None:
    def reusing() -> Iterator[torch.Tensor]:
        ids = torch.zeros(3, dtype=torch.int64)
        for number in range(3):
            yield ids.fill_(number)

    with pytest.raises(InvalidArgumentError, match=r"a batch was written after it had been read"):
        next(iter(training.ahead(reusing())))


class Positioned(Loader):
    """A loader that knows its position."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to go to."""


def test_a_loader_that_would_count_what_was_read_ahead_is_refused(training: Training) -> None:
    with pytest.raises(InvalidArgumentError, match=r"knows its position, which would count"):
        iter(training.ahead(Positioned()))
    distributed = training.strategy.experimental_distribute_dataset(Positioned())
    assert len([*training.ahead(distributed)]) == 5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((7, len), InvalidTypeError, "7 cannot be gone over"),
        (([], 7), InvalidTypeError, "takes a function to call, not int"),
    ],
)
def test_arguments_without_meaning_are_refused(
    strategy: ParameterServerStrategy,
    arguments: tuple[Any, ...],
    error: type[Exception],
    message: str,
) -> None:
    for each in (strategy, stratagem.get_strategy()):
        with pytest.raises(error, match=message):
            each.lookahead(*arguments)


def test_elsewhere_it_goes_over_the_data(training: Training) -> None:
    data = [torch.tensor([1]), torch.tensor([2])]
    for strategy in (stratagem.get_strategy(), stratagem.MirroredStrategy(["cpu:0"])):
        assert [*strategy.lookahead(data, raising)] == data
    with stratagem.ParameterServerStrategy(
        stratagem.cluster_resolver.SimpleClusterResolver(stratagem.ClusterSpec({}))
    ) as alone:
        assert [*alone.lookahead(data, raising)] == data


def test_a_loop_without_run_is_told_of(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    for ids in training.ahead(some_batches()):
        training.step(ids)
    assert caplog.text.count("strategy.lookahead has asked for the rows of 3 batches") == 1


def test_a_run_without_gradients_leaves_rows_to_the_training_step(training: Training) -> None:
    @torch.no_grad()
    def evaluate(ids: torch.Tensor) -> Any:
        return training.users(ids)

    with running(2) as cluster, cluster.strategy() as other:
        expected = Training(other)
        for ids in training.ahead(some_batches(4)):
            with torch.no_grad():
                seen = training.strategy.run(evaluate, args=(ids,))
            assert torch.equal(seen, training.users(ids))
            assert training.train(ids) == expected.train(ids)


def test_replicas_get_the_rows_of_their_parts(cluster: Cluster) -> None:
    def train(ahead: bool) -> list[Any]:
        with running(2) as cluster, cluster.strategy(num_replicas_per_worker=2) as strategy:
            training = Training(strategy)
            loader = DataLoader(some_batches(6), batch_size=None)
            data = strategy.experimental_distribute_dataset(loader)
            losses: list[Any] = []
            for ids in training.ahead(data) if ahead else data:
                result = strategy.run(training.step, args=(ids,))
                losses += strategy.experimental_local_results(result)
            return losses

    config.set_logical_cpus(2)
    assert train(True) == train(False)
