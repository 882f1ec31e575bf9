"""Random numbers that are a function of a key and a counter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""32-bit words, each in the lower half of a 64-bit one."""

Rows = npt.NDArray[np.int64]
"""Numbers of rows."""

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: Sequence[Words], key: tuple[Words, Words]) -> list[Words]:
    """Philox-4x32-10: four random words for each counter of four words.

    Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    Args:
        counter: Four arrays that broadcast against each other.
        key: Two arrays of words, which broadcast against the counters.
    """
    a, b, c, d = counter
    for number in range(_ROUNDS):
        first, second = (
            (word + np.uint64(number * step)) & _LOW for word, step in zip(key, _WEYL, strict=True)
        )
        low, high = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (high >> _HALF) ^ b ^ first, high & _LOW
        c, d = (low >> _HALF) ^ d ^ second, low & _LOW
    return [a, b, c, d]


def words_of_rows(rows: Rows, columns: int, keys: Words | int) -> Words:
    """Return a random word for each element of some rows.

    Args:
        rows: Numbers of the rows; any int64.
        columns: Elements of a row.
        keys: 64 bits, or as many for each row.

    Returns:
        Words of shape (rows, columns). One depends on its row with its key and on its column, and
        on nothing else.
    """
    blocks = np.arange(-(-columns // 4), dtype=np.uint64)
    numbers = rows.view(np.uint64)[:, None]
    none = np.zeros(1, dtype=np.uint64)
    counter = (blocks, none, numbers & _LOW, numbers >> _HALF)
    key = np.asarray(keys, np.uint64).reshape(-1, 1)
    made = philox(counter, (key & _LOW, key >> _HALF))
    return np.stack(made, axis=-1).reshape(len(rows), -1)[:, :columns]


def uniform(words: Words) -> npt.NDArray[np.float64]:
    """Return evenly distributed numbers from 0 to below 1."""
    return words.astype(np.float64) * 2.0**-32


def normal(words: Words) -> npt.NDArray[np.float64]:
    """Return normally distributed numbers, from pairs of words along an even last axis.

    Box and Muller, "A note on the generation of random normal deviates", 1958. With 32-bit words
    the largest is 6.7.
    """
    first, second = words[..., 0::2], words[..., 1::2]
    radius = np.sqrt(-2.0 * np.log((first + 1.0) * 2.0**-32))
    angle = uniform(second) * (2.0 * np.pi)
    made = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=-1)
    return made.reshape(words.shape)
