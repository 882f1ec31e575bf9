"""Torch functions that write to variables: the variable is written, or nothing is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stratagem
from stratagem import (
    CentralStorageStrategy,
    InvalidArgumentError,
    Mirrored,
    MirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    Strategy,
    UnimplementedError,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.clusters import running

pytestmark = pytest.mark.usefixtures("four_cpus")

ONE, TWO, THREES = torch.ones(2), torch.full((2,), 2.0), torch.full((2, 2), 3.0)
DEVICES = ["CPU:0", "CPU:1"]

WRITES: dict[str, Callable[[Any], Any]] = {
    "out=": lambda v: torch.add(ONE, TWO, out=v),
    "out= of two": lambda v: torch.max(THREES, 0, out=(v, torch.tensor([0, 0]))),
    "in place": lambda v: torch.add(v, 2.0, out=v),
    "init": lambda v: torch.nn.init.constant_(v, 3.0),
    "foreach": lambda v: torch._foreach_add_([v], 2.0),
    "inplace=True": lambda v: F.threshold(v, 5.0, 3.0, inplace=True),
    "batch norm": lambda v: F.batch_norm(THREES, v, torch.ones(2), training=True, momentum=1.0),
    "torch's batch norm": lambda v: torch.batch_norm(
        THREES, None, None, v, torch.ones(2), True, 1.0, 1e-5, False
    ),
    "instance norm": lambda v: F.instance_norm(THREES[None], v, torch.ones(2), momentum=1.0),
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


@pytest.fixture(scope="module")
def servers() -> Iterator[ParameterServerStrategy]:
    with running(1) as cluster, cluster.strategy() as strategy:
        yield strategy


@pytest.fixture(scope="module")
def partitioned() -> Iterator[ParameterServerStrategy]:
    with running(2) as cluster:
        partitioner = FixedShardsPartitioner(2)
        with cluster.strategy(variable_partitioner=partitioner) as strategy:
            yield strategy


def made(strategy: Strategy, **traits: Any) -> Any:
    """Return a variable of ones."""
    with strategy.scope():
        return Variable(ONE, trainable=False, **traits)


def values(variable: Any) -> list[Any]:
    """What each copy has."""
    copies = variable.values if isinstance(variable, Variable) else (variable,)
    return [copy.numpy().tolist() for copy in copies]


def refuses(write: Callable[[Any], Any], variable: Any) -> None:
    before = values(variable)
    with pytest.raises(InvalidArgumentError, match="cannot be written by torch's"):
        write(variable)
    assert values(variable) == before


@every_write
@pytest.mark.parametrize("strategy", [None, "CPU:1"])
def test_the_only_copy_here_is_written(write: Callable[[Any], Any], strategy: str | None) -> None:
    owner = OneDeviceStrategy(strategy) if strategy else stratagem.get_strategy()
    variable = made(owner)
    write(variable)
    assert values(variable) == [[3.0, 3.0]]


@every_write
def test_copies_do_not_part(write: Callable[[Any], Any]) -> None:
    strategy = MirroredStrategy(DEVICES)
    variable = made(strategy, aggregation=VariableAggregation.SUM)
    refuses(write, variable)
    strategy.run(lambda: refuses(write, variable))
    with strategy.scope():
        refuses(write, variable)


@every_write
def test_each_copy_is_written_where_it_is_updated(write: Callable[[Any], Any]) -> None:
    strategy = MirroredStrategy(DEVICES)
    variable = made(strategy)
    strategy.extended.update(variable, write)
    assert values(variable) == [[3.0, 3.0]] * 2


@every_write
def test_replicas_write_their_own_copy_of_what_is_combined_on_reading(
    write: Callable[[Any], Any],
) -> None:
    strategy = MirroredStrategy(DEVICES)
    variable = made(
        strategy,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=VariableAggregation.MEAN,
    )
    refuses(write, variable)
    strategy.run(write, args=(variable,))
    assert values(variable) == [[3.0, 3.0]] * 2


@every_write
def test_replicas_do_not_write_central_variables(write: Callable[[Any], Any]) -> None:
    strategy = CentralStorageStrategy(DEVICES)
    variable = made(strategy, aggregation=VariableAggregation.SUM)
    strategy.run(lambda: refuses(write, variable))


@every_write
def test_a_server_keeps_its_value(
    servers: ParameterServerStrategy, write: Callable[[Any], Any]
) -> None:
    variable = made(servers)
    refuses(write, variable)
    servers.run(lambda: refuses(write, variable))
    with pytest.raises(InvalidArgumentError, match="cannot be written by torch's"):
        servers.run(write, args=(variable,))


@every_write
def test_shards_keep_their_values(
    partitioned: ParameterServerStrategy, write: Callable[[Any], Any]
) -> None:
    variable = made(partitioned)
    refuses(write, variable)
    refuses(write, variable.variables[0])


@pytest.mark.parametrize("lookup", [F.embedding, F.embedding_bag])
def test_a_lookup_does_not_renormalize_a_copy(lookup: Callable[..., Any]) -> None:
    with MirroredStrategy(DEVICES).scope():
        table = Variable(torch.ones(2, 2), trainable=False)
    rows = torch.tensor([[0, 1]])
    refuses(partial(lookup, rows, max_norm=0.5), table)
    refuses(lambda v: lookup(rows, weight=v, max_norm=0.5), table)
    assert lookup(rows, table).sum() == lookup(rows, torch.ones(2, 2)).sum()


@every_write
def test_equal_values_do_not_part(write: Callable[[Any], Any]) -> None:
    strategy = MirroredStrategy(DEVICES)
    mirrored = Mirrored((torch.ones(2), torch.ones(2)))
    with pytest.raises(InvalidArgumentError, match="would part"):
        write(mirrored)
    with pytest.raises(InvalidArgumentError, match="would part"):
        mirrored.add_(1.0)
    assert [value.tolist() for value in mirrored.values] == [[1.0, 1.0]] * 2
    strategy.run(write, args=(mirrored,))
    assert [value.tolist() for value in mirrored.values] == [[3.0, 3.0]] * 2


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv", "ipow", "imod"])
def test_augmented_assignment_makes_no_tensor_of_a_variable(
    partitioned: ParameterServerStrategy, name: str
) -> None:
    mirrored = made(MirroredStrategy(DEVICES))
    for variable in (made(stratagem.get_strategy()), mirrored, made(partitioned)):
        before = values(variable)
        with pytest.raises(UnimplementedError, match=r"`variable.assign"):
            getattr(operator, name)(variable, 1.0)
        assert values(variable) == before
