"""What counts as flat."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.endurance.samples import DESCRIPTORS, DISK, MEMORY, Kind, growth

_SAWTOOTH = [10.0 * (number % 7) for number in range(100)]


@pytest.mark.parametrize(
    ("kind", "values", "is_flat"),
    [
        (MEMORY, [*range(0, 300, 15), *[300.0] * 80], True),
        (MEMORY, [300.0 + number for number in range(100)], False),
        (DESCRIPTORS, [20.0] * 50 + [21.0] * 50, True),
        (DESCRIPTORS, [20.0 + number / 10 for number in range(100)], False),
        (DISK, _SAWTOOTH, True),
        (DISK, [value + number for number, value in enumerate(_SAWTOOTH)], False),
    ],
)
def test_what_grows_after_the_warm_up_is_not_flat(
    kind: Kind, values: Sequence[float], is_flat: bool
) -> None:
    assert growth(kind, values).is_flat == is_flat
