"""The few faults that a failing seed needs to fail."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.simulation import simulate
from tests.simulation.world import OPEN_AIR, Shelter

# So many times the time of faults is halved, or half of what is left added to it again.
_HALVINGS = 8


def shrunk(seed: int) -> Shelter:
    """Return how much a failing seed may be spared while it still fails."""
    shelter = OPEN_AIR
    for fault in sorted(simulate(seed).faults):
        spared = replace(shelter, without=shelter.without | {fault})
        if simulate(seed, spared).violations:
            shelter = spared
    return _calmed(seed, shelter)


def _calmed(seed: int, shelter: Shelter) -> Shelter:
    """Let faults cease as early as possible."""
    passes, fails = 0.0, shelter.calm_at
    for _ in range(_HALVINGS):
        tried = round((passes + fails) / 2, 3)
        if simulate(seed, replace(shelter, calm_at=tried)).violations:
            fails = tried
        else:
            passes = tried
    return replace(shelter, calm_at=fails)
