"""Whether a training was what it is without faults."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.chaos.account import Outcome

# By so much the error of a training without faults exceeds that of one process at most.
NOISE = 0.012
# In the first passes the error falls fast, and what workers read too early costs more of it.
EARLY_NOISE, _EARLY_PASSES = 0.024, 3


def wrong(outcome: Outcome, alone: float, updates: Mapping[str, int]) -> list[str]:
    """Return what is wrong, for people; nothing if all is right.

    Args:
        outcome: What became of the training.
        alone: The error of the same training by one process.
        updates: How often each variable was updated; each function is to do so once.
    """
    expected = outcome.passes * outcome.batches
    found = [
        f"{name} was updated {times} times, and not {expected}"
        for name, times in updates.items()
        if times != expected
    ]
    if outcome.miscounted:
        found.append(f"{outcome.miscounted} ratings were not trained on once in each pass")
    if outcome.surplus:
        found.append(f"the sum of what was trained on is too large by {outcome.surplus}")
    noise = NOISE if outcome.passes > _EARLY_PASSES else EARLY_NOISE
    if outcome.error > alone + noise:
        found.append(f"the error is {outcome.error:.4f}, and {alone:.4f} without faults")
    return found
