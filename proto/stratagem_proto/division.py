"""Dividing the rows of a variable into shards as evenly as possible."""

from __future__ import annotations


def sizes_of_shards(rows: int, shards: int) -> tuple[int, ...]:
    """Return the number of rows of each shard; those that have one row more come first.

    Spec: PRT-6.

    Args:
        rows: The number of rows.
        shards: The number of shards, at least 1.
    """
    least, more = divmod(rows, shards)
    return (least + 1,) * more + (least,) * (shards - more)


def rows_of_shard(rows: int, number: int, shards: int) -> tuple[int, int]:
    """Return the first row of a shard, and the row after its last one."""
    sizes = sizes_of_shards(rows, shards)
    start = sum(sizes[:number])
    return start, start + sizes[number]
