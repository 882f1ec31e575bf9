"""Return values of update functions that write, as computed by the server."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import pytest
import torch

from stratagem import (
    ParameterServerStrategy,
    UpdateFunctionError,
    Variable,
    get_replica_context,
    get_strategy,
)
from stratagem_proto.programs.graph_program import MAX_OUTPUT_BYTES
from stratagem_rpc.channel import GRPC, TRANSPORT_VARIABLE
from tests.client.clusters import Cluster
from tests.client.coordinator.coordination import coordinating
from tests.client.relayed_clusters import relayed


class Taken(NamedTuple):
    norm: Any
    count: Any


def counted(v: Variable) -> Any:
    v.add_(1.0)
    return v * 1.0


def test_a_function_that_writes_gives_the_tensors_that_it_returns(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable([3.0, 4.0])

    def fn(v: Variable, rate: float) -> Any:
        before = v * 1.0
        v.assign_sub(rate * v)
        return {"before": before, "norms": [torch.sqrt((v * v).sum()), v]}

    for rate, norm in [(0.5, 2.5), (0.8, 0.5)]:
        before = v.numpy()
        found = strategy.extended.update(v, fn, args=(rate,))
        assert found["before"].tolist() == before.tolist()
        assert found["norms"][0].item() == pytest.approx(norm)
        assert found["norms"][1] is v


def test_what_is_returned_keeps_its_structure(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable([3.0, 4.0])
        step = Variable(torch.tensor(6))
    x = torch.tensor([1.0, 0.0])

    def fn(v: Variable, x: torch.Tensor, rate: float, times: int) -> Any:
        v.assign_add(x)
        taken = Taken(v.value()[0], (None, 2, "done", True))
        return taken, [], {"half": rate / 2, "rate": rate, "next": times + 1, "x": x}

    for rate, first in [(0.5, 4.0), (0.3, 5.0)]:
        taken, empty, rest = strategy.extended.update(v, fn, args=(x, rate, 7))
        assert isinstance(taken, Taken)
        assert taken.norm.shape == () and taken.norm.item() == first
        assert taken.count == (None, 2, "done", True) and empty == []
        assert rest == {"half": rate / 2, "rate": rate, "next": 8, "x": x}
        assert type(rest["next"]) is int and rest["x"] is x

    def twice() -> Any:
        step.assign_add(1)
        return step * 2

    listed = strategy.extended.update_non_slot(step, twice, group=False)
    assert listed == (torch.tensor(14),)
    assert strategy.extended.update(v, lambda v: [v.assign(x)].clear()) is None


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.complex64]
)
def test_tensors_of_each_type_come_back(
    strategy: ParameterServerStrategy, dtype: torch.dtype
) -> None:
    given = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    with strategy.scope():
        v = Variable(torch.zeros_like(given), trainable=False)

    def fn(v: Variable, given: torch.Tensor) -> Any:
        v.assign(given)
        return v.value().t(), v.value()[:0], v.value()[:1].expand(4, 3)

    turned, empty, wide = strategy.extended.update(v, fn, args=(given,))
    assert torch.equal(turned, given.t()) and turned.dtype == dtype
    assert empty.shape == (0, 3) and empty.dtype == dtype
    assert torch.equal(wide, given[:1].expand(4, 3))


def test_what_is_returned_is_as_it_is_when_the_function_ends(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable([1.0, 2.0])

    def fn(v: Variable) -> Any:
        view, copy = v.value()[1:], v * 1.0
        kept = copy * 1.0
        copy.mul_(10.0)
        v.assign_add([1.0, 1.0])
        return view, copy, kept

    view, copy, kept = strategy.extended.update(v, fn)
    assert [view.tolist(), copy.tolist(), kept.tolist()] == [[3.0], [10, 20], [1, 2]]
    strategy.extended.update(v, lambda v: v.assign([0.0, 0.0]))
    assert view.tolist() == [3.0]


def test_workers_get_what_their_own_updates_returned() -> None:
    with relayed(GRPC, 2, 3, 1_000) as relays:

        def program(strategy: ParameterServerStrategy, worker: int) -> list[float]:
            with strategy.scope():
                v = Variable(0.0, name="v")
            return [strategy.extended.update(v, counted).item() for _ in range(20)]

        found = relays.cluster.run(program)
    assert all(each == sorted(each) for each in found)
    assert sorted(chain.from_iterable(found)) == [float(i) for i in range(1, 61)]


def test_functions_of_a_coordinator_get_what_the_server_returned() -> None:
    with coordinating(num_workers=2) as coordination:
        strategy, coordinator = coordination.strategy, coordination.coordinator
        with strategy.scope():
            v = Variable([0.0, 10.0])

        def fn() -> Any:
            # Not waited for: the update comes after it all the same.
            v.assign_add([1.0, 1.0])
            context: Any = get_strategy()
            first, second = context.extended.update(v, counted).tolist()
            return first, second

        given = [coordinator.schedule(fn) for _ in range(20)]
        coordinator.join()
        found = [coordinator.fetch(one) for one in given]
        assert len(set(found)) == 20
        assert all(second - first == 10.0 for first, second in found)
        assert max(found) == (40.0, 50.0) and v.numpy().tolist() == [40.0, 50.0]


@pytest.mark.usefixtures("two_cpus")
def test_replicas_get_what_the_server_returned(cluster: Cluster) -> None:
    with cluster.strategy(num_replicas_per_worker=2) as strategy:
        with strategy.scope():
            v = Variable(1.0)

        def merged(strategy: Any, _: Any) -> Any:
            return strategy.extended.update(v, counted)

        def fn() -> Any:
            replica: Any = get_replica_context()
            return replica.merge_call(merged, args=(0,))

        # Both replicas have the one tensor.
        assert strategy.run(fn).item() == 2.0
        assert v.numpy() == 2.0


def test_an_update_whose_connection_is_cut_returns_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, GRPC)
    with relayed(GRPC, 1, 1, 1_200) as relays, relays.cluster.strategy() as strategy:
        with strategy.scope():
            v = Variable(0.0)
        relays.cut_at_random()
        found = [strategy.extended.update(v, counted).item() for _ in range(80)]
        relays.let_pass()
        assert relays.cuts >= 5
        assert found == [float(i) for i in range(1, 81)]
        assert v.numpy() == 80.0


def test_too_much_is_refused_by_line_and_changes_nothing(
    strategy: ParameterServerStrategy,
) -> None:
    count = MAX_OUTPUT_BYTES // 4
    with strategy.scope():
        small, large = Variable(torch.ones(count)), Variable(torch.ones(count + 1))
    assert torch.equal(strategy.extended.update(small, counted), 2 * torch.ones(count))
    with pytest.raises(
        UpdateFunctionError, match=rf"{__file__}:\d+: .*262148 bytes.*read that after"
    ):
        strategy.extended.update(large, counted)
    assert large.numpy().max() == 1.0
