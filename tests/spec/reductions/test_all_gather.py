"""Concatenation over replicas, in each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
    CommunicationOptions,
    IndexedSlices,
    MirroredStrategy,
    OneDeviceStrategy,
    ReplicaContext,
    Strategy,
)
from tests.client.two_replicas import number

pytestmark = pytest.mark.usefixtures("four_cpus")

DEVICES = ["CPU:0", "CPU:1", "CPU:2"]


@pytest.fixture(params=[MirroredStrategy, CentralStorageStrategy])
def strategy(request: pytest.FixtureRequest) -> Any:
    return request.param(DEVICES)


def replica() -> ReplicaContext:
    context = stratagem.get_replica_context()
    assert context is not None
    return context


@pytest.mark.spec("REP-8")
def test_every_replica_gets_all_parts_in_order(strategy: Strategy) -> None:
    def fn() -> Any:
        index = number()
        value = {"a": torch.full((index, 2), index), "b": [torch.tensor([index])]}
        return replica().all_gather(value, 0, CommunicationOptions(bytes_per_pack=1))

    result = strategy.run(fn)
    for part in result["a"].values:
        assert part.tolist() == [[1, 1], [2, 2], [2, 2]]
    for part in result["b"][0].values:
        assert part.tolist() == [0, 1, 2]
    first, second, _ = result["a"].values
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.spec("REP-8")
@pytest.mark.parametrize(("axis", "shape"), [(0, (6, 3)), (1, (2, 9)), (-1, (2, 9))])
def test_any_axis_will_do(strategy: Strategy, axis: int, shape: tuple[int, ...]) -> None:
    value = torch.arange(6).view(2, 3)
    result = strategy.run(lambda: replica().all_gather(value, axis))
    assert {tuple(part.shape) for part in result.values} == {shape}
    assert torch.equal(result.values[0], torch.cat([value] * 3, axis))


@pytest.mark.spec("REP-8")
def test_gradients_flow_back_to_their_slices(strategy: Strategy) -> None:
    def fn() -> torch.Tensor:
        value = torch.zeros(number() + 1, requires_grad=True)
        joined = replica().all_gather(value, axis=0)
        weights = torch.arange(6.0) * 10 ** number()
        (joined * weights).sum().backward()
        assert value.grad is not None
        return value.grad

    grads = [grad.tolist() for grad in strategy.run(fn).values]
    assert grads == [[0.0], [111.0, 222.0], [333.0, 444.0, 555.0]]


@pytest.mark.spec("REP-8")
def test_a_single_replica_has_everything_already() -> None:
    def fn() -> tuple[torch.Tensor, torch.Tensor | None]:
        value = torch.ones(2, requires_grad=True)
        joined = replica().all_gather(value, axis=0)
        (joined * torch.tensor([1.0, 2.0])).sum().backward()
        return joined.detach(), value.grad

    for strategy in (OneDeviceStrategy("CPU:1"), stratagem.get_strategy()):
        joined, grad = strategy.run(fn)
        assert joined.tolist() == [1.0, 1.0]
        assert grad.tolist() == [1.0, 2.0]


@pytest.mark.spec("REP-8")
@pytest.mark.parametrize(
    ("value", "axis", "error"),
    [
        (lambda: IndexedSlices(torch.ones(1), torch.tensor([0])), 0, "not support"),
        (lambda: torch.ones(2, number() + 1), 0, "all other dimensions"),
        (lambda: torch.tensor(1.0), 0, "out of range"),
        (lambda: torch.ones(2), 1, "out of range"),
        (lambda: 3.0, 0, "takes tensors"),
    ],
)
def test_what_does_not_fit_is_refused(
    strategy: Strategy, value: Any, axis: int, error: str
) -> None:
    kind = NotImplementedError if error == "not support" else ValueError
    with pytest.raises(kind, match=error):
        strategy.run(lambda: replica().all_gather(value(), axis))


@pytest.mark.spec("REP-8")
def test_nothing_is_gathered_from_nothing(strategy: Strategy) -> None:
    assert strategy.run(lambda: replica().all_gather({}, 0)) == {}


@pytest.mark.spec("REP-10")
def test_a_replica_that_is_over_gathers_nothing(strategy: Strategy) -> None:
    kept = strategy.experimental_local_results(strategy.run(lambda: [replica()]))[0][0]
    with pytest.raises(RuntimeError, match="ReplicaContext"):
        kept.all_gather(torch.ones(1), 0)
