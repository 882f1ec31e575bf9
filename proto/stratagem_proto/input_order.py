"""What workers compare of a dataset that all of them have to read in one order."""

from __future__ import annotations

from typing import NamedTuple

from stratagem_proto.errors import InvalidArgumentError

MAX_REPORTED = 1_024
"""The most batches of which one request reports."""

ENDED = 0
"""The digest of a batch that does not exist, since the pass has ended before."""


class BatchRead(NamedTuple):
    """What a worker has read, as in `InputDigest`; without a batch, the files that are shared."""

    dataset: int
    pass_number: int
    batch: int | None
    digest: int


def different_inputs(read: BatchRead, task: str, digest: int, other: str) -> InvalidArgumentError:
    """Return the error of all workers where two of them have read different data.

    Args:
        read: What a worker has read.
        task: That worker.
        digest: What the other worker has at the same place.
        other: The other worker.
    """
    at = f"dataset {read.dataset} (in the order in which they were distributed)"
    if read.batch is None:
        return InvalidArgumentError(
            f"{task} and {other} have different lists of the files of {at}, so some files would be "
            "read twice and others never; give all workers the same files in the same order: "
            "sorted(glob.glob(...))"
        )
    where = f"batch {read.batch} of pass {read.pass_number} over {at}"
    if ENDED in (read.digest, digest):
        ended, goes_on = (task, other) if read.digest == ENDED else (other, task)
        what = f"{goes_on} has {where}, but {ended} has come to the end before it"
    else:
        what = f"{task} and {other} have read different data as {where}"
    return InvalidArgumentError(
        f"{what}. Each worker takes its part of each batch, so some rows would be read twice and "
        "others never; let all workers read the same data in the same order: a sampler that "
        "draws from a torch.Generator of one seed, random.Random(seed) in place of random, "
        "sorted() around a glob. Where each worker is to read data of its own, use "
        "distribute_datasets_from_function, or AutoShardPolicy.OFF"
    )
