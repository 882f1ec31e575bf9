"""Update functions that run on parameter servers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stratagem import (
    InvalidArgumentError,
    ParameterServerStrategy,
    UpdateFunctionError,
    Variable,
    get_replica_context,
)
from tests.client.clusters import Cluster


def test_an_update_function_runs_on_the_server(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable([1.0, 2.0])
        returned = strategy.extended.update(
            v, lambda v, a, b=0.0: v.assign(v * a + b), args=(3.0,), kwargs={"b": 1.0}
        )
    assert returned is v
    assert v.numpy().tolist() == [4.0, 7.0]
    grouped = strategy.extended.update(v, lambda v: v.assign_add(v), group=False)
    assert grouped == (v,)


def test_an_update_function_may_read_a_variable_of_another_server(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        here, there = Variable(1.0), Variable(5.0)
    there.assign(6.0)
    strategy.extended.update(here, lambda v, other: v.assign_add(other), args=(there,))
    assert here.numpy() == 7.0
    assert here.device_name != there.device_name


def test_an_update_function_that_only_reads_gives_what_it_returns(
    cluster: Cluster,
) -> None:
    with cluster.strategy(0) as chief, cluster.strategy(1) as other:
        with chief.scope():
            v, beside = Variable([1.0, 2.0], name="v"), Variable(5.0, name="beside")
        with other.scope():
            again = Variable([0.0, 0.0], name="v")
            far = Variable(0.0, name="beside")
        v.assign([3.0, 4.0])
        beside.assign(6.0)

        def read(v: Variable, scale: float) -> dict[str, Any]:
            return {"sum": (v * scale).sum() + far, "same": v.value()}

        found = other.extended.update(again, read, args=(2.0,))
        assert found["sum"] == 20.0
        assert found["same"].tolist() == [3.0, 4.0]
        listed = other.extended.update_non_slot(again, lambda: far + 1.0, group=False)
        assert listed == (7.0,)
        inside = other.run(lambda: other.extended.update(again, read, args=(1.0,)))
        assert inside["sum"] == 13.0


@pytest.mark.usefixtures("two_cpus")
def test_replicas_update_by_what_they_reduced(cluster: Cluster) -> None:
    with cluster.strategy(num_replicas_per_worker=2) as strategy:
        with strategy.scope():
            v = Variable(1.0)

        def fn() -> None:
            replica = get_replica_context()
            assert replica is not None
            total = replica.all_reduce("sum", torch.tensor(2.0))
            strategy.extended.update(v, lambda v, x: v.assign_add(x), args=(total,))

        strategy.run(fn)
        assert v.numpy() == 5.0
        with pytest.raises(InvalidArgumentError, match="differs between replicas"):
            strategy.run(
                lambda: strategy.extended.update(v, lambda v, x: v.assign_add(x), args=(_number(),))
            )
        assert v.numpy() == 5.0


def _number() -> Any:
    """Return a tensor that differs between replicas."""
    replica = get_replica_context()
    assert replica is not None
    return torch.tensor(float(replica.replica_id_in_sync_group or 0))


def test_an_update_function_that_looks_at_values_is_refused_with_its_line(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        v = Variable(1.0)
    with pytest.raises(UpdateFunctionError, match=r"test_remote_updates\.py:\d+"):
        strategy.extended.update(v, lambda v: v.assign(float(v) + 1))
    assert v.numpy() == 1.0


def test_something_else_than_a_variable_of_the_strategy_cannot_be_updated(
    strategy: ParameterServerStrategy,
) -> None:
    local = Variable(1.0)
    for other in (local, 3.0):
        with pytest.raises(InvalidArgumentError, match="must be a Variable"):
            strategy.extended.update(other, lambda v: v.assign(0.0))


def test_a_variable_of_another_strategy_cannot_be_updated(cluster: Cluster) -> None:
    with cluster.strategy() as mine, cluster.strategy() as theirs:
        with theirs.scope():
            foreign = Variable(1.0)
        with pytest.raises(InvalidArgumentError, match="created in its scope"):
            mine.extended.update(foreign, lambda v: v.assign(2.0))
        assert foreign.numpy() == 1.0


def test_adam_by_hand_equals_torch(strategy: ParameterServerStrategy) -> None:
    extended = strategy.extended
    with strategy.scope():
        v = Variable([1.0, -2.0, 3.0], name="v")
        with extended.colocate_vars_with(v):
            mean = Variable(torch.zeros(3), trainable=False)
            square = Variable(torch.zeros(3), trainable=False)
        home = extended.non_slot_devices([v])
        with extended.colocate_vars_with(home):
            count = Variable(0.0, trainable=False)

    def adam(v: Variable, gradient: torch.Tensor, rate: float) -> None:
        mean.assign(0.9 * mean + 0.1 * gradient)
        square.assign(0.999 * square + 0.001 * gradient * gradient)
        unbiased = mean / (1 - 0.9**count)
        spread = torch.sqrt(square / (1 - 0.999**count)) + 1e-8
        v.assign_sub(rate * unbiased / spread)

    plain = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    reference = torch.optim.Adam([plain], lr=0.0)
    for number in range(1, 30):
        gradient = torch.sin(torch.arange(3.0) * number)
        reference.param_groups[0]["lr"] = 0.1 / number
        plain.grad = gradient
        reference.step()
        with strategy.scope():
            extended.update_non_slot(home, lambda c: c.assign_add(1.0), args=(count,))
            extended.update(v, adam, args=(gradient, 0.1 / number))
    assert count.numpy() == 29
    torch.testing.assert_close(v.value(), plain, rtol=1e-6, atol=1e-7)
