"""TorchRec's collections of embeddings that are not pooled, whose tables are on servers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

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
from tests.client.clusters import running
from tests.client.frameworks.two_tables import KEYS, ROWS, features, two_tables
from tests.pages import ROOT

torchrec = pytest.importorskip("torchrec", reason="TorchRec is not installed")

# Of the framework, about what it will no longer have.
pytestmark = pytest.mark.filterwarnings("default")


def configs(**of_films: Any) -> list[Any]:
    return two_tables(torchrec.EmbeddingConfig, 4, **of_films)


PROGRAM = r"^```python title=.*?\n(.*?)^```"


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        yield strategy


def collections(strategy: ParameterServerStrategy, **options: Any) -> tuple[Any, Any]:
    """A collection on servers, and one of TorchRec's own that is equal to it."""
    from stratagem.frameworks.torchrec import EmbeddingCollection

    with strategy.scope():
        ours = EmbeddingCollection(configs(), **options)
    theirs = torchrec.EmbeddingCollection(configs(), **options)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def loss(found: Any) -> torch.Tensor:
    """A loss whose gradient differs in all elements."""
    values = torch.cat([one.values().flatten() for one in found.values()])
    return (values * torch.linspace(-1.0, 2.0, len(values))).square().sum()


def trained(collection: Any, optimizer: Any) -> Any:
    """Take a step; return what was found before it."""
    found = collection(features())
    optimizer.zero_grad()
    loss(found).backward()
    optimizer.step()
    return found


@pytest.mark.parametrize("need_indices", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad])
def test_it_finds_and_trains_what_torchrec_does(
    strategy: ParameterServerStrategy, optimizer: Any, need_indices: bool
) -> None:
    ours, theirs = collections(strategy, need_indices=need_indices)
    distributed = DistributedOptimizer(optimizer(ours.parameters(), lr=0.1))
    plain = optimizer(theirs.parameters(), lr=0.1)
    for _ in range(3):
        found = strategy.run(trained, args=(ours, distributed))
        expected = trained(theirs, plain)
        assert [*found] == [*expected] == ["user", "seen@users", "seen@films", "liked"]
        for key, one in expected.items():
            torch.testing.assert_close(found[key].values(), one.values())
            assert torch.equal(found[key].lengths(), one.lengths())
            weights = found[key].weights_or_none()
            assert (weights is None) != need_indices
            assert not need_indices or torch.equal(weights, one.weights())
    torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))


def test_gradients_are_of_rows_alone(strategy: ParameterServerStrategy) -> None:
    ours, theirs = collections(strategy)
    strategy.run(lambda: loss(ours(features())).backward())
    loss(theirs(features())).backward()
    gradient = ours.embeddings["films"].weight.grad
    assert gradient.is_sparse
    assert sorted({*gradient._indices()[0].tolist()}) == [0, 2, 7, 11]
    torch.testing.assert_close(gradient.to_dense(), theirs.embeddings["films"].weight.grad)


def test_one_request_of_each_server_pulls_the_rows_of_all_tables(
    strategy: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = collections(strategy)
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


def test_a_table_larger_than_this_machine_is_divided(strategy: ParameterServerStrategy) -> None:
    from stratagem.frameworks.torchrec import EmbeddingCollection

    many = 10**11
    with strategy.scope():
        ours = EmbeddingCollection(configs(num_embeddings=many), device="meta")
    last = torchrec.KeyedJaggedTensor(
        KEYS,
        torch.tensor([1, 1, many - 1]),
        lengths=torch.tensor([1, 1, 1]),
    )
    optimizer = DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=1.0))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        found: torch.Tensor = ours(last)["liked"].values()
        found.sum().backward()
        optimizer.step()
        return found.detach()

    before, after = strategy.run(step), strategy.run(step)
    torch.testing.assert_close(after, before - 1)


def test_without_servers_it_is_torchrecs_own_with_sparse_gradients() -> None:
    from stratagem.frameworks.torchrec import EmbeddingCollection

    ours, theirs = EmbeddingCollection(configs()), torchrec.EmbeddingCollection(configs())
    theirs.load_state_dict(ours.state_dict())
    assert isinstance(ours, torchrec.EmbeddingCollection)
    for collection in (ours, theirs):
        loss(collection(features())).backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad.is_sparse and not other.grad.is_sparse
        torch.testing.assert_close(mine.grad.to_dense(), other.grad)


def test_what_tables_on_servers_have_not_is_refused() -> None:
    from stratagem.frameworks.torchrec import EmbeddingCollection

    half = configs(data_type=torchrec.types.DataType.BF16)
    with pytest.raises(InvalidArgumentError, match=r"'films'.*data_type=.*it has to be FP32"):
        EmbeddingCollection(half)
    with pytest.raises(ValueError, match="same embedding dimension"):
        EmbeddingCollection(configs(embedding_dim=3))


def test_an_optimizer_in_the_backward_of_a_table_is_refused(
    strategy: ParameterServerStrategy,
) -> None:
    ours, _ = collections(strategy)
    torchrec.optim.apply_optimizer_in_backward(torch.optim.SGD, ours.parameters(), {"lr": 0.1})
    with pytest.raises(FailedPreconditionError, match=r"'users'.*apply_optimizer_in_backward"):
        strategy.run(ours, args=(features(),))


def test_a_row_that_is_not_there_is_an_index_error(strategy: ParameterServerStrategy) -> None:
    ours, _ = collections(strategy)
    with pytest.raises(RowIndexError, match=f"'embeddings.films.weight.*' .*{ROWS}"):
        strategy.run(ours, args=(features(largest=ROWS),))


def test_the_program_of_the_page_lowers_its_loss(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/guide/frameworks.md").read_text(encoding="utf-8")
    (program,) = re.findall(PROGRAM, page, re.DOTALL | re.MULTILINE)
    exec(compile(program, "frameworks", "exec"), {"__name__": "__main__"})
    before, after = capsys.readouterr().out.split(">")
    assert float(before) > float(after)
