"""ShardedVariable over variables of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import stratagem
from stratagem import IndexedSlices, Variable
from tests.full import by_values

ROWS = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]


def sharded(*sizes: int, name: str = "table") -> Any:
    """Rows of `ROWS`, in shards of some sizes."""
    parts = torch.tensor(ROWS).split(sizes or (2, 2, 1))
    return stratagem.ShardedVariable([Variable(part) for part in parts], name)


@pytest.mark.spec("SHV-1")
@pytest.mark.parametrize(
    ("other", "message"),
    [([2], "same dtype"), ([[1.0]], "same shape except"), (1.0, "scalar")],
)
def test_shards_have_rows_of_one_kind(other: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stratagem.ShardedVariable([Variable([1.0]), Variable(other)])


@pytest.mark.spec("SHV-5")
@pytest.mark.parametrize("name", ["trainable", "handle", "device", "synchronization"])
def test_it_is_no_variable(name: str) -> None:
    table = sharded()
    assert not isinstance(table, Variable)
    assert not hasattr(table, name)
    assert all(shard.trainable for shard in table)


@pytest.mark.spec("SHV-6")
@pytest.mark.parametrize("value", [1.0, torch.ones(5, 3), torch.ones(6, 2), ROWS[:4]])
def test_values_of_another_shape_are_refused(value: Any) -> None:
    table = sharded()
    with pytest.raises(ValueError, match="the shapes must be equal"):
        table.assign(value)
    assert table.numpy().tolist() == ROWS


INDICES: list[Any] = [
    0,
    -1,
    np.int64(3),
    slice(None),
    slice(1, 4),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(4, 1, -2),
    slice(10, 20),
    (slice(1, None), 1),
    (slice(None, None, -2), slice(None, None, -1)),
    (..., 0),
    (2, ...),
    (slice(1, 4), ..., None),
    (None, 0),
    None,
    (),
    torch.tensor([True, False, True, False, True]),
    np.array(ROWS) > 3,
]


@pytest.mark.spec("SHV-7")
@by_values("index,sizes", INDICES, [(2, 2, 1), (5,), (1, 4)])
def test_indexing_follows_numpy(index: Any, sizes: tuple[int, ...]) -> None:
    asked = index.numpy() if isinstance(index, torch.Tensor) else index
    found = sharded(*sizes)[index]
    np.testing.assert_array_equal(found.detach().numpy(), np.array(ROWS)[asked])


@pytest.mark.spec("SHV-8")
@pytest.mark.parametrize("index", [5, -6])
def test_rows_out_of_bounds_are_an_index_error(index: int) -> None:
    table = sharded()
    with pytest.raises(IndexError, match="out of bounds") as error:
        table[index]
    # As in TensorFlow; the other class would end a loop over data.
    assert isinstance(error.value, stratagem.InvalidArgumentError)
    assert not isinstance(error.value, stratagem.OutOfRangeError)


@pytest.mark.spec("SHV-10")
def test_only_an_even_layout_takes_rows() -> None:
    rows = IndexedSlices(torch.ones(1, 2), torch.tensor([1]))
    table = sharded(1, 4)
    with pytest.raises(NotImplementedError, match='does not conform to "div"'):
        table.scatter_add(rows)
    with pytest.raises(TypeError, match="takes IndexedSlices"):
        table.scatter_add(torch.ones(5, 2))


@pytest.mark.spec("SHV-10")
def test_rows_are_numbers_of_rows_in_one_dimension() -> None:
    table = sharded()
    rows = IndexedSlices(torch.ones(1, 2), torch.tensor([5]))
    with pytest.raises(ValueError, match="has the rows 0 to 4"):
        table.scatter_add(rows)
    with pytest.raises(ValueError, match="one row of values for each index"):
        table.scatter_add(IndexedSlices(torch.ones(1, 1, 2), torch.tensor([[1]])))


@pytest.mark.spec("SHV-11")
def test_rows_come_back_in_the_order_asked() -> None:
    table = sharded(name="users")
    found = table.sparse_read(torch.tensor([[4, 0], [3, 3]]))
    assert table.name == "users"
    assert found.tolist() == [[ROWS[4], ROWS[0]], [ROWS[3], ROWS[3]]]
    assert table.sparse_read([]).shape == (0, 2)
    with pytest.raises(ValueError, match="has the rows 0 to 4"):
        table.sparse_read([5])


def test_a_variable_in_one_piece_has_rows_likewise() -> None:
    """A partitioner may leave it whole, for instance where there is one server."""
    table: Any = Variable(torch.tensor(ROWS), name="users")
    found = table.sparse_read([[4, 0], [3, 3]])
    assert found.tolist() == [[ROWS[4], ROWS[0]], [ROWS[3], ROWS[3]]]
    assert table.sparse_read([]).shape == (0, 2)
    found.sum().backward()
    assert table.grad.sum(1).tolist() == [2, 0, 0, 4, 2]
    with pytest.raises(ValueError, match=r"-1 to -1 of 'users'.*has the rows 0 to 4"):
        table.sparse_read([-1])
    with pytest.raises(ValueError, match="is a scalar and has no rows"):
        Variable(1.0).sparse_read([0])


@pytest.mark.parametrize("rows", [torch.tensor([1.5]), torch.tensor([True]), [1]])
def test_rows_are_whole_numbers(rows: Any) -> None:
    for look_up in (functional.embedding, functional.embedding_bag):
        with pytest.raises(TypeError, match="'table' is looked up by a tensor of int"):
            look_up(rows, sharded(), None if look_up is functional.embedding else rows)
    if isinstance(rows, torch.Tensor):
        with pytest.raises(TypeError, match="'table' is looked up by a tensor of int"):
            sharded().sparse_read(rows)


@pytest.mark.spec("SHV-12")
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_looked_up_as_in_one_tensor(sparse: bool) -> None:
    options: dict[str, Any] = {"padding_idx": 3, "sparse": sparse}
    options["scale_grad_by_freq"] = not sparse  # which torch has for dense ones alone
    ids = torch.tensor([[4, 0, 3], [3, 4, 1]])
    table, whole = sharded(), torch.tensor(ROWS, requires_grad=True)

    def used(weight: Any) -> torch.Tensor:
        found = functional.embedding(ids, weight, **options)
        (found * torch.arange(12.0).reshape(2, 3, 2)).sum().backward()
        return found

    assert torch.equal(used(table), used(whole))
    assert whole.grad is not None
    gradients = [shard.grad for shard in table.variables]
    assert all(gradient.is_sparse == sparse for gradient in gradients)
    dense = [gradient.to_dense() for gradient in gradients]
    assert torch.equal(torch.cat(dense), whole.grad.to_dense())


@pytest.mark.spec("SHV-12")
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows_are_looked_up_as_in_one_tensor(mode: str) -> None:
    ids, starts = torch.tensor([4, 0, 3, 4, 1]), torch.tensor([0, 2])
    table, whole = sharded(), torch.tensor(ROWS, requires_grad=True)

    def used(weight: Any) -> torch.Tensor:
        found = functional.embedding_bag(ids, weight, starts, mode=mode, padding_idx=-2)
        found.square().sum().backward()
        return found

    assert torch.equal(used(table), used(whole))
    gradients = [shard.grad for shard in table.variables]
    assert whole.grad is not None
    assert torch.equal(torch.cat(gradients), whole.grad)


@pytest.mark.spec("SHV-12")
def test_bags_of_rows_have_weights_and_sparse_gradients() -> None:
    ids, weights = torch.tensor([[4, 0], [3, 4]]), torch.tensor([[1.0, 2], [3, 4]])
    table = sharded()
    found = functional.embedding_bag(
        ids, table, mode="sum", per_sample_weights=weights, sparse=True
    )
    assert found.tolist() == [[8.0, 11.0], [50.0, 57.0]]
    found.sum().backward()
    assert all(shard.grad.is_sparse for shard in table.variables)
    assert table.variables[2].grad.to_dense().tolist() == [[5.0, 5.0]]


@pytest.mark.spec("SHV-12")
def test_looking_up_does_not_write() -> None:
    table = sharded()
    with pytest.raises(ValueError, match="max_norm would have to write"):
        functional.embedding(torch.tensor([1]), table, max_norm=1.0)


@pytest.mark.spec("SHV-13")
@pytest.mark.parametrize(
    "function",
    [
        lambda table: table + 1,
        lambda table: 1 - table,
        lambda table: table == table,
        lambda table: table > 3,
        lambda table: table @ torch.ones(2, 1),
        lambda table: torch.sum(table, 0),
        lambda table: torch.as_tensor(np.asarray(table)),
        lambda table: torch.as_tensor(table.numpy()),
    ],
)
def test_it_stands_for_the_concatenated_value(function: Callable[[Any], Any]) -> None:
    found = function(sharded())
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, function(torch.tensor(ROWS)))


@pytest.mark.spec("SHV-13")
def test_torch_cannot_write_to_it() -> None:
    table = sharded()
    with pytest.raises(ValueError, match=r"torch's zero_"):
        torch.zero_(table)


@pytest.mark.spec("SHV-14")
def test_gradients_arrive_at_the_shards() -> None:
    table = sharded()
    (table.read_value() ** 2).sum().backward()
    gradients = [shard.grad.tolist() for shard in table.variables]
    assert gradients == [
        [[0.0, 2.0], [4.0, 6.0]],
        [[8.0, 10.0], [12.0, 14.0]],
        [[16.0, 18.0]],
    ]
    with pytest.raises(RuntimeError):
        torch.autograd.grad((table * 2).sum(), table)
