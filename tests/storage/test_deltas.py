"""Deltas of tensors: whatever the bits are, what they make has the same; else they are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem_proto.errors import DataLossError, FailedPreconditionError
from stratagem_proto.v1.checkpoint_pb2 import ByteDelta
from stratagem_proto.wire.tensors import DTYPES, as_bytes, spec_of
from stratagem_storage.checkpoint import deltas
from stratagem_storage.checkpoint.deltas import (
    LEAST_BYTES,
    Delta,
    PatchedTensor,
    composed,
    delta_between,
)
from stratagem_storage.checkpoint.parts import DTYPE_NAMES
from tests.full import examples

Read = Callable[[int, memoryview], None]
STORABLE = sorted(set(DTYPE_NAMES) & set(DTYPES.values()), key=str)


def reader_of(tensor: torch.Tensor) -> Read:
    data = as_bytes(tensor)

    def read(begin: int, target: memoryview) -> None:
        target[:] = data[begin : begin + len(target)]

    return read


def patched(base: torch.Tensor, delta: Delta, described: ByteDelta | None = None) -> PatchedTensor:
    told = delta.described() if described is None else described
    return PatchedTensor(spec_of(base), told, delta.read, reader_of(base), "a part")


def made_of(base: torch.Tensor, delta: Delta) -> bytes:
    target = bytearray(base.nbytes)
    patched(base, delta).read(0, memoryview(target))
    return bytes(target)


def of_any_bits(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """With NaNs of all kinds, infinities and negative zeros, where the dtype has them."""
    generator = torch.Generator().manual_seed(seed)
    most = 2 if dtype == torch.bool else 256
    shape = (count * dtype.itemsize,)
    return torch.randint(0, most, shape, dtype=torch.uint8, generator=generator).view(dtype)


def altered(base: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    other = of_any_bits(base.dtype, base.numel(), seed + 1)
    mask = torch.rand(base.numel(), generator=generator) < share
    # By numbers, which comparisons of NaN do not touch.
    rows, others = base.view(torch.uint8).view(base.numel(), -1).clone(), other.view(torch.uint8)
    rows[mask] = others.view(base.numel(), -1)[mask]
    return rows.reshape(-1).view(base.dtype)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.sampled_from(STORABLE),
    st.integers(LEAST_BYTES, 2 * LEAST_BYTES),
    st.floats(0.0, 0.2),
    st.integers(0, 1 << 30),
)
def test_it_makes_the_same_bits(dtype: torch.dtype, nbytes: int, share: float, seed: int) -> None:
    base = of_any_bits(dtype, -(-nbytes // dtype.itemsize), seed)
    first = altered(base, share, seed + 2)
    second = altered(first, share, seed + 3)
    one, two = delta_between(base, first), delta_between(first, second)
    assert one is not None and two is not None
    assert len(one.data) < base.nbytes
    assert made_of(base, one) == as_bytes(first).tobytes()
    both = composed((one, two), spec_of(base))
    if both is not None:
        assert made_of(base, both) == as_bytes(second).tobytes()
    begin, end = sorted((seed % base.nbytes, seed * 7 % base.nbytes))
    some = bytearray(end - begin)
    patched(base, one).read(begin, memoryview(some))
    assert some == as_bytes(first)[begin:end]


def test_tensors_of_several_pieces_have_only_those_that_differ() -> None:
    base = torch.randn(3_000_001).bfloat16()
    value = base.clone()
    value[2_999_990:] = -0.0
    delta = delta_between(base, value)
    assert delta is not None and len(delta.data) < 200
    assert made_of(base, delta) == as_bytes(value).tobytes()
    same = delta_between(base, base.clone())
    assert same is not None and len(same.data) == 4 * 6


def test_what_would_not_be_smaller_goes_whole() -> None:
    base, other = (of_any_bits(torch.float32, 1 << 18, seed) for seed in range(2))
    assert delta_between(base, other) is None
    # What differs is not in the midst.
    value = of_any_bits(torch.uint8, 3 << 20, 0)
    other = of_any_bits(torch.uint8, 3 << 20, 1)
    other[1 << 20 : 2 << 20] = value[1 << 20 : 2 << 20]
    delta = delta_between(value, other)
    assert delta is not None and len(delta.data) < 0.7 * value.nbytes
    for small in (torch.empty(0), torch.tensor(1.0), torch.zeros(LEAST_BYTES // 4 - 1)):
        assert delta_between(small, small + 1) is None


def test_adam_with_a_small_rate_changes_few_bytes() -> None:
    torch.manual_seed(0)
    for dtype, most in ((torch.bfloat16, 0.05), (torch.float32, 0.6)):
        parameter = torch.nn.Parameter((torch.randn(1 << 17) * 0.02).to(dtype))
        adam = torch.optim.Adam([parameter], lr=1e-6)
        base = parameter.detach().clone()
        for _ in range(10):
            parameter.grad = torch.randn(1 << 17).to(dtype)
            adam.step()
        delta = delta_between(base, parameter.detach())
        assert delta is not None and len(delta.data) < most * base.nbytes


def test_a_damaged_delta_makes_nothing_else() -> None:
    base = torch.randn(LEAST_BYTES)
    value = altered(base, 0.001, 1)
    delta = delta_between(base, value)
    assert delta is not None
    expected, refused = as_bytes(value).tobytes(), 0
    for place in range(len(delta.data)):
        data = delta.data.clone()
        data[place] ^= 1 << place % 8
        try:
            assert made_of(base, Delta(data, delta.base, delta.made)) == expected
        except DataLossError:
            refused += 1
    assert refused > 0.9 * len(delta.data)
    for nbytes in (0, 3, 4, len(delta.data) - 1):
        cut = ByteDelta(nbytes=nbytes, base=delta.base, made=delta.made)
        with pytest.raises(DataLossError, match=r"a delta of 'a part' has"):
            patched(base, delta, cut).read(0, memoryview(bytearray(base.nbytes)))


def test_another_base_is_refused() -> None:
    base = torch.randn(LEAST_BYTES)
    delta = delta_between(base, altered(base, 0.001, 1))
    assert delta is not None
    other = base.clone()
    other[-1] = -other[-1]
    with pytest.raises(DataLossError, match="of another base than the one that is here"):
        made_of(other, delta)
    wrong = Delta(delta.data, delta.base, delta.made ^ 1)
    with pytest.raises(DataLossError, match="makes other bytes"):
        made_of(base, wrong)


def test_without_the_package_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.zeros(LEAST_BYTES)
    delta = delta_between(base, base + 1)
    assert delta is not None
    monkeypatch.setattr(deltas, "HAS_DELTAS", False)
    assert delta_between(base, base + 1) is None
    with pytest.raises(FailedPreconditionError, match=r"pip install 'stratagem\[deltas\]'"):
        made_of(base, delta)
