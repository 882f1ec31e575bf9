"""How a global batch is split between replicas."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from stratagem import (
    AutoShardPolicy,
    InvalidArgumentError,
    InvalidTypeError,
    OutOfRangeError,
    Strategy,
    UnbatchedInputError,
)
from stratagem._input.rounds import split, without_rows
from tests.client.batches import batches, pairs, steps
from tests.client.two_replicas import TwoReplicas


def split_by(strategy: Strategy, dataset: Any, **options: Any) -> list[list[Any]]:
    return steps(strategy.experimental_distribute_dataset(dataset, **options))


@pytest.mark.spec("INP-1", "INP-11", "STR-33")
def test_a_global_batch_is_shared_among_replicas(strategy: Strategy) -> None:
    halves = split_by(strategy, batches(100, 10))
    assert len(halves) == 10
    assert halves[3] == [[30, 31, 32, 33, 34], [35, 36, 37, 38, 39]]


@pytest.mark.spec("INP-12")
def test_each_batch_is_cut_on_its_own(strategy: Strategy) -> None:
    assert split_by(strategy, batches(10, 4)) == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8], [9]],
    ]


@pytest.mark.spec("INP-13")
def test_the_last_replicas_get_less_or_nothing(strategy: Strategy) -> None:
    assert split_by(strategy, batches(9, 4))[-1] == [[8], []]
    assert split_by(strategy, batches(7, 3)) == [
        [[0, 1], [2]],
        [[3, 4], [5]],
        [[6], []],
    ]
    assert split_by(strategy, batches(5, 1)) == [[[k], []] for k in range(5)]


@pytest.mark.spec("INP-14")
@pytest.mark.parametrize("policy", AutoShardPolicy)
def test_every_policy_splits_by_the_same_rule(strategy: Strategy, policy: AutoShardPolicy) -> None:
    """Batches are never cut again across their borders."""
    parts = split_by(strategy, batches(7, 3), auto_shard_policy=policy)
    assert parts == [[[0, 1], [2]], [[3, 4], [5]], [[6], []]]


@pytest.mark.spec("INP-19", "INP-16")
def test_a_single_worker_reads_everything_under_hint(strategy: Strategy) -> None:
    """There is no pipeline of operations whose hint to replace."""
    hint = AutoShardPolicy.HINT
    assert split_by(strategy, batches(4, 4), auto_shard_policy=hint) == [[[0, 1], [2, 3]]]


@pytest.mark.spec("ENU-6")
def test_a_policy_is_one_of_the_enumeration(strategy: Strategy) -> None:
    assert split_by(strategy, batches(2, 2), auto_shard_policy=2) == [[[0], [1]]]
    with pytest.raises(InvalidArgumentError, match="not 7"):
        strategy.experimental_distribute_dataset(batches(2, 2), auto_shard_policy=7)
    assert [(p.name, int(p)) for p in AutoShardPolicy] == [
        ("OFF", -1),
        ("AUTO", 0),
        ("FILE", 1),
        ("DATA", 2),
        ("HINT", 3),
    ]


@pytest.mark.spec("INP-20")
def test_a_loader_that_drops_the_remainder_is_obeyed(strategy: Strategy) -> None:
    parts = split_by(strategy, batches(7, 3, drop_last=True))
    assert parts == [[[0, 1], [2]], [[3, 4], [5]]]


@pytest.mark.spec("INP-10", "OD-3")
def test_one_replica_takes_elements_as_they_are() -> None:
    one = TwoReplicas(1)
    elements = list(one.experimental_distribute_dataset([3, torch.ones(2)]))
    assert [type(element) for element in elements] == [torch.Tensor, torch.Tensor]
    assert elements[0].item() == 3
    assert elements[1].tolist() == [1, 1]


@pytest.mark.spec("INP-22")
@pytest.mark.parametrize("element", [5, torch.tensor(5.0), {"text": "abc"}, object()])
def test_elements_without_rows_cannot_be_split(strategy: Strategy, element: object) -> None:
    iterator = iter(strategy.experimental_distribute_dataset([element]))
    with pytest.raises(UnbatchedInputError, match="Unable to get batched dataset") as e:
        next(iterator)
    assert isinstance(e.value, IndexError)
    assert isinstance(e.value, ValueError)


@pytest.mark.spec("INP-22", "INP-42")
def test_an_unbatched_dataset_does_not_look_like_the_end(strategy: Strategy) -> None:
    """An OutOfRangeError would end a loop silently."""
    iterator = iter(strategy.experimental_distribute_dataset([5]))
    with pytest.raises(UnbatchedInputError) as error:
        iterator.get_next()
    assert not isinstance(error.value, OutOfRangeError)


Pair = namedtuple("Pair", "x y")


@pytest.mark.spec("INP-24")
def test_structures_are_kept_and_every_leaf_split(strategy: Strategy) -> None:
    element = {"pair": Pair(torch.eye(3), [np.arange(3)]), "none": None}
    (value,) = strategy.experimental_distribute_dataset([element])
    first, second = strategy.experimental_local_results(value)
    assert isinstance(first["pair"], Pair)
    assert first["pair"].x.tolist() == torch.eye(3)[:2].tolist()
    assert second["pair"].x.tolist() == torch.eye(3)[2:].tolist()
    assert [first["pair"].y[0].tolist(), second["pair"].y[0].tolist()] == [[0, 1], [2]]
    assert first["none"] is second["none"] is None


@pytest.mark.spec("INP-24")
def test_leaves_of_one_batch_have_equal_numbers_of_rows(strategy: Strategy) -> None:
    dataset = [(torch.ones(2), torch.ones(3))]
    with pytest.raises(InvalidArgumentError, match=r"\[2, 3\] rows"):
        next(iter(strategy.experimental_distribute_dataset(dataset)))


@pytest.mark.spec("INP-25")
def test_sparse_tensors_are_split_by_rows(strategy: Strategy) -> None:
    (value,) = strategy.experimental_distribute_dataset([torch.eye(3).to_sparse()])
    assert [part.layout for part in value.values] == [torch.sparse_coo] * 2
    dense = [part.to_dense().tolist() for part in value.values]
    assert dense == [[[1, 0, 0], [0, 1, 0]], [[0, 0, 1]]]


@pytest.mark.spec("INP-25")
def test_ragged_tensors_are_split_by_rows() -> None:
    rows = [torch.arange(2.0), torch.arange(3.0), torch.arange(1.0), torch.ones(0)]
    ragged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    parts = split(ragged, 3)
    assert [[row.tolist() for row in part.unbind()] for part in parts[:2]] == [
        [[0, 1], [0, 1, 2]],
        [[0], []],
    ]
    assert parts[2].size(0) == 0


@pytest.mark.spec("INP-25")
def test_ragged_tensors_may_have_gaps_between_their_rows() -> None:
    table = torch.arange(12.0).reshape(3, 4)
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([2, 1, 2])
    ragged = torch.nested.narrow(table, 1, starts, lengths, layout=torch.jagged)
    first, second = split(ragged, 2)
    assert [row.tolist() for row in first.unbind()] == [[0, 1], [5]]
    assert [row.tolist() for row in second.unbind()] == [[10, 11]]


@pytest.mark.spec("INP-25")
@pytest.mark.filterwarnings("ignore:.*(beta state|prototype stage)")
def test_tensors_of_other_layouts_are_refused_by_name(strategy: Strategy) -> None:
    rows = [torch.ones(2), torch.ones(3)]
    rows_of_columns = torch.nested.nested_tensor(
        [row.reshape(1, -1) for row in rows], layout=torch.jagged
    )
    for tensor, layout in (
        (torch.eye(4).to_sparse_csr(), "torch.sparse_csr"),
        (torch.nested.nested_tensor(rows, layout=torch.strided), "torch.strided"),
        (rows_of_columns, "torch.jagged"),
    ):
        iterator = iter(strategy.experimental_distribute_dataset([tensor]))
        with pytest.raises(InvalidArgumentError, match=f"layout {layout} cannot be"):
            next(iterator)


@pytest.mark.spec("INP-24")
def test_strings_are_split_by_rows(strategy: Strategy) -> None:
    """What collating makes of strings is a list of them."""
    (value,) = strategy.experimental_distribute_dataset([{"s": ["a", "b", "cc"]}])
    assert [part.tolist() for part in value["s"].values] == [["a", "b"], ["cc"]]


@pytest.mark.spec("INP-11")
def test_parts_share_the_memory_of_their_batch() -> None:
    batch = torch.arange(4)
    parts = split(batch, 2)
    parts[1][0] = 9
    assert batch.tolist() == [0, 1, 9, 3]


@pytest.mark.spec("INP-27")
def test_an_empty_batch_gives_empty_parts() -> None:
    first, second = split(torch.ones(0, 3, dtype=torch.int16), 2)
    assert first.shape == second.shape == (0, 3)
    assert second.dtype == torch.int16


@pytest.mark.spec("INP-27", "INP-28")
def test_an_element_without_rows_has_the_form_of_one_with() -> None:
    emptied = without_rows((torch.ones(2, 3), torch.tensor(4), "name"))
    assert emptied[0].shape == (0, 3)
    assert emptied[1].shape == (0,)
    assert emptied[1].dtype == torch.int64
    assert emptied[2] == "name"


@pytest.mark.spec("INP-26")
@pytest.mark.parametrize(
    "dataset", [5, None, "text", {"x": [1]}, torch.ones(4), np.ones(4), iter([1])]
)
def test_only_datasets_can_be_distributed(strategy: Strategy, dataset: object) -> None:
    with pytest.raises(InvalidTypeError):
        strategy.experimental_distribute_dataset(dataset)
    with pytest.raises(InvalidTypeError):
        strategy.distribute_datasets_from_function(lambda context: dataset)
    with pytest.raises(InvalidTypeError, match="dataset_fn must be a function"):
        strategy.distribute_datasets_from_function(batches(2, 1))  # type: ignore[arg-type]


@pytest.mark.spec("INP-24")
def test_features_and_labels_stay_together(strategy: Strategy) -> None:
    distributed = strategy.experimental_distribute_dataset(pairs(5, 4))

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        features, labels = batch
        assert features[:, 0].tolist() == (2 * labels).tolist()
        return labels

    results = [strategy.run(step, (x,)) for x in distributed]
    totals = [strategy.reduce("sum", result, axis=0) for result in results]
    assert [total.item() for total in totals] == [6, 4]
