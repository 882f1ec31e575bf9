"""TorchRec's collections of embedding bags, whose tables are on servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    DistributedOptimizer,
    FailedPreconditionError,
    InvalidArgumentError,
    ParameterServerStrategy,
    RowIndexError,
)
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.transport import Style
from tests import distributions
from tests.client.clusters import running
from tests.client.frameworks.two_tables import KEYS, ROWS, features, two_tables

torchrec = pytest.importorskip("torchrec", reason="TorchRec is not installed")

# Of the framework, about what it will no longer have.
pytestmark = pytest.mark.filterwarnings("default")


def configs(**of_films: Any) -> list[Any]:
    return two_tables(torchrec.EmbeddingBagConfig, 3, **of_films)


WEIGHTS = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.5, 1.0, 3.0, -2.0, 0.25])

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        yield strategy


def collections(
    strategy: ParameterServerStrategy, tables: list[Any], is_weighted: bool = False, **scope: Any
) -> tuple[Any, Any]:
    """A collection on servers, and one of TorchRec's own that is equal to it."""
    from stratagem.frameworks.torchrec import EmbeddingBagCollection

    with strategy.scope(**scope):
        ours = EmbeddingBagCollection(tables, is_weighted)
    theirs = torchrec.EmbeddingBagCollection(tables, is_weighted)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def loss(collection: Any, batch: Any) -> tuple[Any, torch.Tensor]:
    """What a collection finds, and a loss whose gradient differs in all elements."""
    found = collection(batch)
    scales = torch.linspace(-1.0, 2.0, found.values().numel()).view_as(found.values())
    return found, (found.values() * scales).square().sum()


def trained(collection: Any, optimizer: Any, batch: Any) -> Any:
    """Take a step; return what was found before it."""
    found, value = loss(collection, batch)
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    return found


def assert_same(strategy: ParameterServerStrategy, both: tuple[Any, Any], batch: Any) -> None:
    """Check that what is found, and what it is after steps, are equal."""
    ours, theirs = both
    for make in OPTIMIZERS.values():
        optimizer, plain = DistributedOptimizer(make(ours.parameters())), make(theirs.parameters())
        for _ in range(3):
            found = strategy.run(trained, args=(ours, optimizer, batch))
            expected = trained(theirs, plain, batch)
            assert found.keys() == expected.keys()
            torch.testing.assert_close(found.values(), expected.values())
            for key in expected.keys():  # noqa: SIM118 - it is no dict
                torch.testing.assert_close(found[key], expected[key])
        torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))


@pytest.mark.parametrize("pooling", ["SUM", "MEAN"])
def test_it_finds_and_trains_what_torchrec_does(
    strategy: ParameterServerStrategy, pooling: str
) -> None:
    both = collections(strategy, configs(pooling=torchrec.PoolingType[pooling]))
    assert_same(strategy, both, features())
    assert both[0](features()).keys() == ["user", "seen@users", "seen@films", "liked"]


def test_ids_have_weights(strategy: ParameterServerStrategy) -> None:
    both = collections(strategy, configs(), is_weighted=True)
    assert_same(strategy, both, features(WEIGHTS))


def test_weights_have_gradients(strategy: ParameterServerStrategy) -> None:
    ours, theirs = collections(strategy, configs(), is_weighted=True)
    mine, other = WEIGHTS.clone().requires_grad_(), WEIGHTS.clone().requires_grad_()
    strategy.run(lambda: loss(ours, features(mine))[1].backward())
    loss(theirs, features(other))[1].backward()
    torch.testing.assert_close(mine.grad, other.grad)


def test_gradients_are_of_rows_alone(strategy: ParameterServerStrategy) -> None:
    ours, theirs = collections(strategy, configs())
    strategy.run(lambda: loss(ours, features())[1].backward())
    loss(theirs, features())[1].backward()
    gradient = ours.embedding_bags["films"].weight.grad
    assert gradient.is_sparse
    assert sorted({*gradient._indices()[0].tolist()}) == [0, 2, 7, 11]
    expected = theirs.embedding_bags["films"].weight.grad
    torch.testing.assert_close(gradient.to_dense(), expected)


def test_initial_values_are_torchrecs_byte_for_byte(strategy: ParameterServerStrategy) -> None:
    from stratagem.frameworks.torchrec import EmbeddingBagCollection

    torch.manual_seed(0)
    theirs = torchrec.EmbeddingBagCollection(configs(init_fn=torch.nn.init.trunc_normal_))
    torch.manual_seed(0)
    with strategy.scope():
        ours = EmbeddingBagCollection(configs(init_fn=torch.nn.init.trunc_normal_))
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)


def test_tables_without_memory_start_as_torchrecs(strategy: ParameterServerStrategy) -> None:
    from stratagem.frameworks.torchrec import EmbeddingBagCollection, EmbeddingCollection

    def build(kind: Any, config: Any) -> Any:
        init_fn = partial(torch.nn.init.trunc_normal_, std=0.5, b=0.25)
        table = {"name": "films", "feature_names": ["liked"], "num_embeddings": 2000}
        made = kind([config(embedding_dim=8, init_fn=init_fn, **table)])
        torch.nn.init.ones_(next(made.parameters()))
        made.reset_parameters()
        return made

    for kind, theirs, config in (
        (EmbeddingBagCollection, torchrec.EmbeddingBagCollection, torchrec.EmbeddingBagConfig),
        (EmbeddingCollection, torchrec.EmbeddingCollection, torchrec.EmbeddingConfig),
    ):
        with strategy.scope(meta_above=1000):
            ours = build(kind, config)
        found = torch.nn.functional.embedding(torch.arange(2000), next(ours.parameters()))
        distributions.assert_same(found, next(build(theirs, config).parameters()))


def test_a_table_larger_than_this_machine_is_divided_and_starts_as_configured(
    strategy: ParameterServerStrategy,
) -> None:
    from stratagem.frameworks.torchrec import EmbeddingBagCollection

    many = 10**11
    with strategy.scope():
        films = {"num_embeddings": many, "weight_init_min": 0.25, "weight_init_max": 0.5}
        ours = EmbeddingBagCollection(configs(**films), device="meta")
    last = torchrec.KeyedJaggedTensor(
        KEYS, torch.tensor([1, 1, many - 1]), lengths=torch.tensor([1, 1, 1])
    )
    optimizer = DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=1.0))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        found: torch.Tensor = ours(last)["liked"]
        found.sum().backward()
        optimizer.step()
        return found.detach()

    before, after = strategy.run(step), strategy.run(step)
    assert ((before >= 0.25) & (before < 0.5)).all()
    torch.testing.assert_close(after, before - 1)
    parts = [p for p in strategy.extended.variable_placements() if p.shape == (many // 2, 4)]
    assert len({part.server for part in parts}) == 2


def test_one_request_of_each_server_pulls_the_rows_of_all_tables(
    strategy: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratagem.frameworks.torchrec import EmbeddingBagCollection

    names = [f"table_{number}" for number in range(9)]
    table = partial(torchrec.EmbeddingBagConfig, embedding_dim=2, num_embeddings=ROWS)
    with strategy.scope():
        ours = EmbeddingBagCollection([table(name=name, feature_names=KEYS) for name in names])
    start, sent = Connection.start, Counter[str]()

    def counted(self: Connection, request: Request[Any], **how: Style) -> Any:
        sent[request.method] += 1
        return start(self, request, **how)

    def reads() -> int:
        before = sent["Read"]
        ours(features())
        return sent["Read"] - before

    monkeypatch.setattr(Connection, "start", counted)
    assert strategy.run(reads) == 2


def test_a_collection_that_is_built_already_is_adopted(strategy: ParameterServerStrategy) -> None:
    from stratagem.frameworks import adopt
    from stratagem.frameworks.torchrec import EmbeddingBagCollection

    ours, theirs = EmbeddingBagCollection(configs()), torchrec.EmbeddingBagCollection(configs())
    theirs.load_state_dict(ours.state_dict())
    adopt(strategy, ours)
    assert_same(strategy, (ours, theirs), features())


def test_without_servers_it_is_torchrecs_own_with_sparse_gradients() -> None:
    from stratagem.frameworks.torchrec import EmbeddingBagCollection

    ours, theirs = EmbeddingBagCollection(configs()), torchrec.EmbeddingBagCollection(configs())
    theirs.load_state_dict(ours.state_dict())
    assert isinstance(ours, torchrec.EmbeddingBagCollection)
    for collection in (ours, theirs):
        loss(collection, features())[1].backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad.is_sparse and not other.grad.is_sparse
        torch.testing.assert_close(mine.grad.to_dense(), other.grad)


def test_workers_train_the_same_tables() -> None:
    from stratagem.frameworks.torchrec import EmbeddingBagCollection

    def train(strategy: ParameterServerStrategy, worker: int) -> Any:
        torch.manual_seed(worker)
        with strategy.scope():
            ours = EmbeddingBagCollection(configs())
        optimizer = DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1))
        start = dict(ours.state_dict())
        strategy.barrier("built")
        for _ in range(3):
            strategy.run(lambda: (ours(features()).values().sum().backward(), optimizer.step()))
            optimizer.zero_grad()
        strategy.barrier("trained")
        return start, dict(ours.state_dict())

    with running(2, num_workers=2) as cluster:
        first, second = cluster.run(train)
    torch.testing.assert_close(first, second)
    start, end = (each["embedding_bags.films.weight"] for each in first)
    # Row 7 is in "seen" twice and in "liked" once; each of six steps subtracts 0.1 for each.
    torch.testing.assert_close(end[7], start[7] - 6 * 0.1 * 3)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"use_virtual_table": True}, r"'films'.*use_virtual_table=True.*DynamicEmbedding"),
        ({"num_embeddings_post_pruning": 3}, r"'films'.*num_embeddings_post_pruning=3"),
        ({"data_type": "BF16"}, r"'films'.*data_type=.*it has to be FP32"),
        ({"data_type": "FP16"}, r"'films'.*data_type=.*it has to be FP32"),
        ({"data_type": "INT8"}, r"'films'.*data_type=.*it has to be FP32"),
    ],
)
def test_what_tables_on_servers_have_not_is_refused(asked: dict[str, Any], named: str) -> None:
    from stratagem.frameworks.torchrec import EmbeddingBagCollection

    if "data_type" in asked:
        asked = {"data_type": torchrec.types.DataType[asked["data_type"]]}
    with pytest.raises(InvalidArgumentError, match=named):
        EmbeddingBagCollection(configs(**asked))


def test_means_of_weighted_ids_are_refused() -> None:
    from stratagem.frameworks.torchrec import EmbeddingBagCollection

    mean = configs(pooling=torchrec.PoolingType.MEAN)
    with pytest.raises(InvalidArgumentError, match=r"'films'.*MEAN of weighted ids"):
        EmbeddingBagCollection(mean, is_weighted=True)


def test_an_optimizer_in_the_backward_of_a_table_is_refused(
    strategy: ParameterServerStrategy,
) -> None:
    ours, _ = collections(strategy, configs())
    torchrec.optim.apply_optimizer_in_backward(torch.optim.SGD, ours.parameters(), {"lr": 0.1})
    with pytest.raises(FailedPreconditionError, match=r"'users'.*apply_optimizer_in_backward"):
        strategy.run(ours, args=(features(),))


def test_a_row_that_is_not_there_is_an_index_error(strategy: ParameterServerStrategy) -> None:
    ours, _ = collections(strategy, configs())
    wrong = torchrec.KeyedJaggedTensor(
        KEYS, torch.tensor([0, 1, ROWS]), lengths=torch.tensor([1, 1, 1])
    )
    with pytest.raises(RowIndexError, match=f"'embedding_bags.films.weight.*' .*{ROWS}"):
        strategy.run(ours, args=(wrong,))


def test_two_replicas_share_the_tables() -> None:
    stratagem.config.set_logical_cpus(2)
    try:
        with (
            running(2) as cluster,
            cluster.strategy(num_replicas_per_worker=2) as strategy,
        ):
            ours, theirs = collections(strategy, configs())
            optimizer = DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1))
            strategy.run(trained, args=(ours, optimizer, features()))
            plain = torch.optim.SGD(theirs.parameters(), lr=0.1)
            trained(theirs, plain, features())
            torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))
    finally:
        stratagem.config.set_logical_cpus(1)
