"""Values that travel without pickle."""

from __future__ import annotations

import decimal
import enum
import math
import sys
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from stratagem import IndexedSlices, InvalidTypeError
from stratagem._core.distributed_values import Mirrored, PerReplica
from stratagem._shipping.outcome_forms import PLAIN


class Scores(NamedTuple):
    loss: float
    logits: Any


class Color(enum.IntEnum):
    RED = 1


def returned(value: Any) -> Any:
    return PLAIN.load(PLAIN.dump(value), "a worker")


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(1 << 63),
        1 << 63,
        -(1 << 4000) + 1,
        1.5,
        -0.0,
        math.inf,
        2 - 3j,
        "",
        "Grüße\udc80",
        "long " * 1000,
        b"\x00\xff",
        b"long" * 1000,
        (),
        [],
        {},
        set(),
        frozenset({1, "a", None, b"b", 2.5}),
        {"a": (1, [2.0, {"b": None}]), 3: "c", None: b"", 1.5: ()},
        OrderedDict([("b", 1), ("a", 2)]),
        [*range(-50, 50)],
        ([0.1] * 100, [True] * 100, [1, 1.0] * 50, [1 << 64, 1] * 50),
        Scores(0.5, (1, 2)),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cuda:1"),
    ],
    # The elements of a set have another order in each process.
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    found = returned(value)
    assert type(found) is type(value)
    assert repr(found) == repr(value) if not isinstance(value, frozenset) else found == value


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.int8,
        torch.uint16,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float64,
        torch.complex64,
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_a_tensor_comes_back_with_its_dtype_and_shape(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(torch.float32).to(dtype)
    found = returned({"it": tensor})["it"]
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert torch.equal(found.to(torch.complex64), tensor.to(torch.complex64))


def test_views_and_what_autograd_follows_come_back_as_plain_tensors() -> None:
    weights = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    found = returned([weights, weights.t()[1:], (weights * 2).sum(), torch.tensor([1j]).conj()])
    assert [type(each) for each in found] == [torch.Tensor] * 4
    assert not any(each.requires_grad for each in found)
    assert found[1].tolist() == [[1, 4], [2, 5]]
    found[1].add_(1)  # it is writable
    assert found[3].tolist() == [-1j]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize(
    "layout",
    [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc],
    ids=str,
)
def test_sparse_tensors_come_back(layout: torch.layout) -> None:
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    block = (1, 1) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    found = returned(dense.to_sparse(layout=layout, blocksize=block))
    assert found.layout is layout
    assert torch.equal(found.to_dense(), dense)


def test_indexed_slices_come_back() -> None:
    slices = IndexedSlices(torch.ones(2, 3), torch.tensor([4, 1]), (5, 3))
    found = returned(slices)
    assert type(found) is IndexedSlices
    assert found.dense_shape == (5, 3)
    assert torch.equal(found.to_dense(), slices.to_dense())


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.eye(2)),
        np.array(["a", "ccc"]),
        np.array([b"x"]),
        np.array(["2024-01-01"], dtype="datetime64[D]"),
        np.zeros((0, 2), dtype=np.float16),
        np.float32(1.5),
        np.int64(-3),
        np.bool_(True),
        np.array(2.0),
    ],
    ids=lambda each: f"{type(each).__name__} {each.dtype}",
)
def test_arrays_and_numbers_of_numpy_come_back(array: Any) -> None:
    found = returned([array])[0]
    assert type(found) is type(array)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert np.array_equal(found, array)


def test_values_of_replicas_come_back_as_such() -> None:
    apart, equal = PerReplica([torch.ones(1), {"a": 2}]), Mirrored([1.0, 1.0])
    apart.without_rows = (1,)
    found = returned((apart, equal))
    assert [type(each) for each in found] == [PerReplica, Mirrored]
    assert found[0].values[1] == {"a": 2}
    assert found[0].without_rows == (1,)
    assert found[1].values == (1.0, 1.0)


def test_a_state_dict_comes_back_with_what_torch_notes_beside_it() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    found = returned(model.state_dict())
    assert found._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1)).load_state_dict(found)


def test_what_functions_of_torch_return_comes_back() -> None:
    found = returned(torch.tensor([[1.0, 3.0]]).max(dim=1))
    assert found.values.tolist() == [3]
    assert found.indices.tolist() == [1]


Elsewhere = namedtuple("Elsewhere", "a b")


def test_a_named_tuple_whose_class_is_not_loaded_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = PLAIN.dump(Elsewhere(1, 2))
    assert type(returned(Elsewhere(1, 2))) is Elsewhere
    monkeypatch.delattr(sys.modules[__name__], "Elsewhere")
    with pytest.raises(InvalidTypeError, match=r"a worker returned a named tuple of class .*Elsew"):
        PLAIN.load(payload, "a worker")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_nests_may_be_40_deep() -> None:
    assert returned(nested(40)) == nested(40)
    with pytest.raises(InvalidTypeError, match="is in 40 nests, or contains itself"):
        PLAIN.dump(nested(41))


def containing_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def local() -> tuple[Any, ...]:
    class Local(NamedTuple):
        a: int

    return Local(1)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [decimal.Decimal(1)]}, r"the result\['a'\]\[0\] is a decimal.Decimal, which does"),
        (lambda: 1, "the result is a function, which does not travel without pickle: tensors,"),
        ((1, Color.RED), r"the result\[1\] is a .*Color"),
        ({(1, 2): 3}, r"the result has the key \(1, 2\), a tuple; keys of dicts"),
        ({1 << 64: 3}, "has the key 18446744073709551616, a int; keys"),
        (np.array([object()]), "is an array of object"),
        (torch.empty(2, device="meta"), "is a tensor of torch.float32 in layout torch.strided on"),
        (local(), "a named tuple of a class that only the worker has"),
        (containing_itself(), "contains itself"),
        pytest.param(
            ["x"] * (1 << 20),
            r"the result\[1048575\] is one of over 1,048,576 parts; make tensors",
            marks=pytest.mark.full("a value of over 16 MiB is refused by the same walk"),
        ),
        (["x" * 1000] * (1 << 15), "has over 16 MiB besides tensors and arrays"),
    ],
    ids=lambda each: each[:30] if isinstance(each, str) else "",
)
def test_what_does_not_travel_is_refused_by_its_type_and_place(value: Any, says: str) -> None:
    with pytest.raises(InvalidTypeError, match=says) as caught:
        PLAIN.dump(value)
    assert "trust_workers=True" in str(caught.value)
