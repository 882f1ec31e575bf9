"""Which variables there are, and what may be done to the set of them."""

from __future__ import annotations

import pytest
import torch

from stratagem_proto.division import PartRows
from stratagem_proto.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidNameError,
    VariableNotFoundError,
)
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    VARIABLE_KIND_NON_SLOT,
    VARIABLE_KIND_SLOT,
    VARIABLE_KIND_UNSPECIFIED,
    Partition,
    VariableSpec,
)
from stratagem_psserver.variables.store import VariableStore
from tests.psserver.wire import model_spec, slot_spec

VALUE = torch.zeros(2, 3)


@pytest.fixture
def store() -> VariableStore:
    """Two variables, "dense.weight" and "dense.bias", and a slot of the first."""
    store = VariableStore()
    slot = slot_spec("dense.weight/m", "dense.weight", VALUE)
    specs = [model_spec("dense.weight", VALUE), model_spec("dense.bias", VALUE), slot]
    store.create(specs, [VALUE.clone() for _ in specs])
    return store


def names(store: VariableStore) -> list[str]:
    return [info.spec.name for info in store.listing()]


def test_variables_are_listed_in_order_of_creation_and_by_kind(
    store: VariableStore,
) -> None:
    assert names(store) == ["dense.weight", "dense.bias", "dense.weight/m"]
    slots = store.listing([VARIABLE_KIND_SLOT])
    assert [info.spec.slot_of for info in slots] == ["dense.weight"]


def test_a_new_variable_has_version_1(store: VariableStore) -> None:
    assert [info.version for info in store.describe(["dense.bias"])] == [1]


def test_a_name_that_comes_again_gets_no_version_again(store: VariableStore) -> None:
    store.get("dense.bias").version += 3
    store.delete(["dense.bias"])
    (again,) = store.create([model_spec("dense.bias", VALUE)], [VALUE.clone()])
    assert again.version == 5


def test_an_unknown_variable_is_named_with_the_nearest_one(
    store: VariableStore,
) -> None:
    with pytest.raises(VariableNotFoundError, match=r"did you mean 'dense\.weight'") as e:
        store.describe(["dense.bias", "dense.wieght"])
    assert e.value.variable == "dense.wieght"


def test_the_nearest_name_is_found_among_very_many() -> None:
    store, value = VariableStore(), torch.zeros(0)
    names = [f"table/{number}/shard-of-an-embedding" for number in range(50_000)]
    store.create([model_spec(name, value) for name in names], [value] * len(names))
    with pytest.raises(VariableNotFoundError, match=r"did you mean 'table/4711/shard"):
        store.get("table/4711/shard-of-a-embedding")


def test_an_empty_server_says_that_it_is_empty() -> None:
    with pytest.raises(VariableNotFoundError, match="hosts none yet"):
        VariableStore().get("w")


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (model_spec("dense.bias", VALUE), AlreadyExistsError),
        (model_spec("fresh", VALUE), AlreadyExistsError),
        (model_spec("", VALUE), InvalidNameError),
        (model_spec("a" * 513, VALUE), InvalidNameError),
        (model_spec("a b", VALUE), InvalidNameError),
        (model_spec("w", torch.zeros(3, 2)), InvalidArgumentError),
        (model_spec("w", VALUE.double()), InvalidArgumentError),
        (slot_spec("s", "nobody", VALUE), VariableNotFoundError),
        (slot_spec("s", "dense.weight/m", VALUE), InvalidArgumentError),
        (slot_spec("s", "", VALUE), InvalidArgumentError),
        (VariableSpec(name="w", kind=VARIABLE_KIND_UNSPECIFIED), InvalidArgumentError),
    ],
)
def test_all_variables_of_a_request_are_created_or_none(
    store: VariableStore, spec: VariableSpec, error: type[Exception]
) -> None:
    """CreateVariables promises "all or none"."""
    if spec.kind == VARIABLE_KIND_UNSPECIFIED:
        spec.tensor.CopyFrom(model_spec("w", VALUE).tensor)
    before = names(store)
    with pytest.raises(error):
        store.create([model_spec("fresh", VALUE), spec], [VALUE, VALUE])
    assert names(store) == before


def test_a_model_variable_has_no_owner(store: VariableStore) -> None:
    spec = model_spec("w", VALUE)
    spec.slot_of = "dense.weight"
    with pytest.raises(InvalidArgumentError, match="SLOT"):
        store.create([spec], [VALUE])


def test_a_part_of_those_that_take_rows_in_turn_has_as_many_as_it_says() -> None:
    spec = model_spec("w", VALUE)
    for rows, fits in ((4, True), (5, False)):
        spec.partition.CopyFrom(PartRows(1, 2, 2).partition((rows + 1, 3)))
        if fits:
            VariableStore().create([spec], [VALUE])
            continue
        with pytest.raises(InvalidArgumentError, match="number 1 of 2 is not a part"):
            VariableStore().create([spec], [VALUE])


@pytest.mark.parametrize(
    ("full_shape", "offset", "fits"),
    [((4, 3), (2, 0), True), ((4, 3), (3, 0), False), ((4,), (0,), False)],
)
def test_a_part_must_lie_within_its_whole(
    full_shape: tuple[int, ...], offset: tuple[int, ...], fits: bool
) -> None:
    spec = model_spec("w", VALUE)
    spec.partition.CopyFrom(Partition(full_shape=full_shape, offset=offset))
    if fits:
        VariableStore().create([spec], [VALUE])
        return
    with pytest.raises(InvalidArgumentError, match="is not a part"):
        VariableStore().create([spec], [VALUE])


@pytest.mark.parametrize("field", ["wanted_name", "structure", "label"])
def test_what_tells_a_variable_from_its_namesakes_is_kept_and_short(field: str) -> None:
    spec = model_spec("w", VALUE)
    setattr(spec.origin, field, "user")
    store = VariableStore()
    store.create([spec], [VALUE])
    assert store.listing()[0].spec.origin == spec.origin
    spec = model_spec("other", VALUE)
    setattr(spec.origin, field, "u" * 1000)
    with pytest.raises(InvalidArgumentError, match=f"'other' has a {field} of 1000 characters"):
        store.create([spec], [VALUE])
    assert names(store) == ["w"]


def test_slots_are_deleted_with_their_variable(store: VariableStore) -> None:
    assert store.delete(["dense.weight"]) == ["dense.weight", "dense.weight/m"]
    assert names(store) == ["dense.bias"]


def test_a_slot_may_be_deleted_alone(store: VariableStore) -> None:
    assert store.delete(["dense.weight/m"]) == ["dense.weight/m"]
    assert store.slots("dense.weight") == []


def test_nothing_is_deleted_if_one_name_is_unknown(store: VariableStore) -> None:
    before = names(store)
    with pytest.raises(VariableNotFoundError):
        store.delete(["dense.bias", "nobody"])
    assert names(store) == before


def test_what_is_longer_than_a_name_is_named_by_its_beginning(store: VariableStore) -> None:
    with pytest.raises(VariableNotFoundError) as refused:
        store.get("dense.weight" * 1_000_000)
    assert len(str(refused.value)) < 2_000
    assert len(refused.value.variable) < 2_000


def test_a_slot_is_locked_under_its_owners_name(store: VariableStore) -> None:
    assert store.owner("dense.weight/m") == store.owner("dense.weight")
    assert store.owner("unknown") == "unknown"


@pytest.mark.parametrize("kind", [VARIABLE_KIND_MODEL, VARIABLE_KIND_NON_SLOT])
def test_a_scalar_and_an_empty_variable_can_be_hosted(kind: int) -> None:
    store = VariableStore()
    for name, value in {"scalar": torch.tensor(3), "empty": torch.empty(0, 4)}.items():
        spec = model_spec(name, value)
        spec.kind = VARIABLE_KIND_NON_SLOT if kind != spec.kind else spec.kind
        store.create([spec], [value])
    assert names(store) == ["scalar", "empty"]
