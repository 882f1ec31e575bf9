"""Tensors as arrays of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stratagem
from stratagem import Variable
from stratagem._core.tensors import as_array


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, np.float16),
        (torch.bfloat16, np.float32),
        (torch.float8_e5m2, np.float32),
        (torch.uint8, np.uint8),
    ],
)
def test_an_array_has_all_values(dtype: torch.dtype, expected: type) -> None:
    array = as_array(torch.tensor([0.5, 3.0]).to(dtype))
    assert array.dtype == expected
    assert torch.equal(torch.from_numpy(array).to(dtype).float(), widened(dtype))


def widened(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([0.5, 3.0]).to(dtype).float()


def test_what_arrays_cannot_show_is_told_by_torch() -> None:
    with pytest.raises(TypeError, match="to_dense"):
        as_array(torch.ones(2, dtype=torch.int64).to_sparse())


def test_a_variable_of_bfloat16_becomes_an_array_of_float32() -> None:
    with stratagem.OneDeviceStrategy("cpu").scope():
        variable = Variable(torch.ones(2, dtype=torch.bfloat16))
    for array in variable.numpy(), np.asarray(variable):
        assert array.dtype == np.float32
        assert array.tolist() == [1, 1]


def test_views_of_complex_values_become_arrays() -> None:
    values = torch.tensor([1 + 2j])
    assert as_array(values.conj()).tolist() == [1 - 2j]
    assert as_array(values.conj().imag).tolist() == [-2]
