"""Read plans are kept while they are valid, up to a limit."""

from __future__ import annotations

from operator import is_
from typing import Any

import pytest
import torch

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_BFLOAT16
from stratagem_psserver.fast import plans
from stratagem_psserver.fast.plans import ReadPlanCache
from stratagem_psserver.variables.store import VariableStore
from tests.psserver.wire import indices, model_spec

pytestmark = pytest.mark.fast_servers


def all_of(*names: str, newer_than: int | None = None) -> list[pb.Selection]:
    return [pb.Selection(variable=name, newer_than=newer_than) for name in names]


def hosting_two() -> tuple[VariableStore, ReadPlanCache]:
    store = VariableStore()
    for name in "wb":
        store.create([model_spec(name, torch.zeros(2))], [torch.zeros(2)])
    return store, ReadPlanCache(store)


def test_a_choice_is_kept_for_those_who_read_the_same() -> None:
    store, kept = hosting_two()
    first = kept.plan(all_of("w", "b"))
    store.get("b").version += 1
    assert kept.plan(all_of("w", "b")) is first
    assert first.present_header().versions == [1, 2]
    other = kept.plan(all_of("w", "b", newer_than=1))
    w, b = (store.get(name).value for name in "wb")
    assert [each is b for each in other.tensors()] == [True]
    assert all(map(is_, kept.plan(all_of("b", "w")).tensors(), (b, w)))


def test_leave_that_one_reader_is_given_is_not_told_to_the_next() -> None:
    _, kept = hosting_two()
    kept.plan(all_of("w")).present_header().grants.add(step=1)
    assert not kept.plan(all_of("w")).present_header().grants


def test_a_choice_is_not_kept_once_a_variable_is_replaced() -> None:
    store, kept = hosting_two()
    kept.plan(all_of("w"))
    store.put_value("w", torch.ones(2))
    assert torch.equal(kept.plan(all_of("w")).tensors()[0], torch.ones(2))


@pytest.mark.parametrize(
    "part",
    [
        {"slice": pb.Slice(start=[1], size=[1])},
        {"rows": pb.Rows(indices=indices(1))},
        {"narrowed_to": DATA_TYPE_BFLOAT16},
    ],
)
def test_a_kept_choice_is_not_that_of_a_part(part: dict[str, Any]) -> None:
    _, kept = hosting_two()
    whole = kept.plan(all_of("w"))
    assert kept.plan([pb.Selection(variable="w", **part)]) is not whole
    assert kept.plan(all_of("w")) is whole


def test_no_more_choices_are_kept_than_take_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "MOST_NAMES", 3)
    _, kept = hosting_two()
    both, one = kept.plan(all_of("w", "b")), kept.plan(all_of("w"))
    assert kept.plan(all_of("w", "b")) is both
    kept.plan(all_of("b"))
    assert kept.plan(all_of("w", "b")) is both
    assert kept.plan(all_of("w")) is not one
