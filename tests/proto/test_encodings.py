"""Tensors made smaller for the wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.tensor_pb2 import ENCODING_KIND_NARROWED, EncodingKind
from stratagem_proto.wire.encodings import Encoded, decode, narrow, pack, quantize, select
from stratagem_proto.wire.tensors import spec_of

FLOATS = (torch.float32, torch.float64)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of any shape and any finite elements."""
    dtype = draw(st.sampled_from(FLOATS))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    finite = partial(st.floats, allow_nan=False, allow_infinity=False)
    elements = finite(width=32) if dtype == torch.float32 else finite(width=64)
    size = torch.Size(shape).numel()
    flat = draw(st.lists(elements, min_size=size, max_size=size))
    return torch.tensor(flat, dtype=dtype).reshape(shape)


@given(tensors(), st.sampled_from((torch.float16, torch.bfloat16)))
def test_narrowing_is_what_torch_rounds_to_but_stays_finite(
    value: torch.Tensor, dtype: torch.dtype
) -> None:
    encoded = narrow(value, dtype)
    decoded = decode(encoded)
    assert encoded.tensor.dtype == dtype
    assert (decoded.dtype, decoded.shape) == (value.dtype, value.shape)
    rounded = value.to(dtype).to(value.dtype)
    fits = rounded.isfinite()
    assert torch.equal(decoded[fits], rounded[fits])
    limit = torch.finfo(dtype).max
    assert torch.equal(decoded[~fits], value[~fits].sign() * limit)


def test_narrowing_leaves_what_is_not_finite_as_it_is() -> None:
    value = torch.tensor([float("nan"), float("inf"), -float("inf")])
    decoded = decode(narrow(value, torch.float16))
    assert decoded.isnan().tolist() == [True, False, False]
    assert decoded[1:].tolist() == value[1:].tolist()


@given(tensors(), st.booleans(), st.sampled_from([quantize, pack]))
def test_levels_are_off_by_half_a_level_at_most(
    value: torch.Tensor, by_row: bool, encode: Callable[[torch.Tensor, bool], Encoded]
) -> None:
    encoded = encode(value, by_row)
    decoded = decode(encoded)
    assert encoded.tensor.dtype == (torch.int8 if encode is quantize else torch.uint8)
    assert (decoded.dtype, decoded.shape) == (value.dtype, value.shape)
    assert bool(decoded.isfinite().all())
    scales = encoded.companion
    assert scales is not None
    spread = scales.reshape(-1, *[1] * (value.dim() - 1)) if scales.dim() else scales
    # The smallest numbers have few digits, so that 127 levels cannot be told apart.
    slack = 0.51 * spread + 127 * torch.finfo(value.dtype).smallest_normal
    slack = slack + value.abs() * 4 * torch.finfo(value.dtype).eps
    assert bool(((decoded - value).abs() <= slack).all())


def test_each_row_has_levels_of_its_own() -> None:
    value = torch.tensor([[1.0, 0.5], [1000.0, 500.0]])
    assert decode(quantize(value, by_row=True))[0, 1] == pytest.approx(0.5, rel=0.01)
    assert decode(quantize(value, by_row=False))[0, 1] == 0


@given(tensors(), st.data())
def test_the_largest_elements_arrive_exactly_and_the_others_are_zero(
    value: torch.Tensor, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, value.numel()))
    encoded = select(value, count)
    decoded = decode(encoded)
    assert (decoded.dtype, decoded.shape) == (value.dtype, value.shape)
    assert encoded.companion is not None
    sent = torch.zeros(value.numel(), dtype=torch.bool)
    sent[encoded.companion.long()] = True
    sent = sent.reshape(value.shape)
    assert int(sent.sum()) == count
    assert torch.equal(decoded, torch.where(sent, value, 0))
    if 0 < count < value.numel():
        assert value[sent].abs().min() >= value[~sent].abs().max()


VALUE = torch.arange(6.0).reshape(2, 3)
HALF = narrow(VALUE, torch.float16)
LEVELS = quantize(VALUE, by_row=True)
PACKED = pack(VALUE, by_row=True)
ODD = pack(VALUE[0], by_row=True)
CHOSEN = select(VALUE, 2)

WRONG = {
    "no kind": replace(HALF, kind=EncodingKind.ENCODING_KIND_UNSPECIFIED),
    "a kind of tomorrow": replace(HALF, kind=99),  # type: ignore[arg-type]
    "a narrow tensor that is none": replace(HALF, tensor=VALUE),
    "another shape": replace(HALF, tensor=HALF.tensor.T),
    "integers as a result": replace(HALF, decoded=spec_of(VALUE.long())),
    "no such dtype": replace(HALF, decoded=type(HALF.decoded)(dtype=77)),  # type: ignore[arg-type]
    "no scales": replace(LEVELS, companion=None),
    "scales of another dtype": replace(LEVELS, companion=torch.ones(2).double()),
    "too many scales": replace(LEVELS, companion=torch.ones(3)),
    "scales for each element": replace(LEVELS, companion=torch.ones(2, 3)),
    "a scale that is no number": replace(LEVELS, companion=torch.tensor([1.0, float("nan")])),
    "an infinite scale": replace(LEVELS, companion=torch.tensor([1.0, float("inf")])),
    "a scale that overflows": replace(LEVELS, companion=torch.tensor([1.0, 3e38])),
    "a negative scale": replace(LEVELS, companion=torch.tensor([1.0, -1.0])),
    "levels of another dtype": replace(LEVELS, tensor=VALUE),
    "levels of another shape": replace(LEVELS, tensor=LEVELS.tensor.reshape(3, 2)),
    "packed levels of another dtype": replace(PACKED, tensor=PACKED.tensor.view(torch.int8)),
    "packed levels of another shape": replace(PACKED, tensor=PACKED.tensor.reshape(3, 1)),
    "fewer packed levels": replace(PACKED, tensor=PACKED.tensor[1:]),
    "a packed level behind the last one": replace(ODD, tensor=ODD.tensor | 0xF0),
    "a packed level of -8": replace(PACKED, tensor=torch.full((3,), 0x88, dtype=torch.uint8)),
    "packed levels without scales": replace(PACKED, companion=None),
    "a scale of packed levels that overflows": replace(PACKED, companion=torch.tensor([1.0, 6e37])),
    "no places": replace(CHOSEN, companion=None),
    "a place beyond the end": replace(CHOSEN, companion=torch.tensor([0, 6])),
    "a place before the beginning": replace(CHOSEN, companion=torch.tensor([-1, 2])),
    "a place twice": replace(CHOSEN, companion=torch.tensor([2, 2])),
    "places out of order": replace(CHOSEN, companion=torch.tensor([2, 1])),
    "places that are no integers": replace(CHOSEN, companion=torch.tensor([0.0, 1.0])),
    "fewer places": replace(CHOSEN, companion=torch.tensor([1])),
    "places as a matrix": replace(
        CHOSEN, tensor=VALUE[:, :2], companion=torch.arange(4).reshape(2, 2)
    ),
    "elements of another dtype": replace(CHOSEN, tensor=torch.ones(2).double()),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_not_as_it_claims_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidArgumentError):
        decode(WRONG[wrong])


def test_a_scalar_and_an_empty_tensor_have_encodings() -> None:
    for value in (torch.tensor(2.5), torch.empty(0, 3), torch.empty(3, 0)):
        for encoded in (
            narrow(value, torch.float16),
            quantize(value, by_row=True),
            quantize(value, by_row=False),
            pack(value, by_row=True),
            select(value, value.numel()),
        ):
            assert torch.equal(decode(encoded), value)


def test_the_size_is_that_of_all_that_crosses_the_wire() -> None:
    sizes = [each.nbytes for each in (HALF, LEVELS, PACKED, CHOSEN)]
    assert sizes == [12, 6 + 8, 3 + 8, 8 + 8]
    assert Encoded(ENCODING_KIND_NARROWED, HALF.decoded, HALF.tensor).nbytes == 12
