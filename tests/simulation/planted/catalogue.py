"""Faults of a server, planted into the real code, which the simulation has to find."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.planted import consistency, durability, exactly_once, values
from tests.simulation.planted.plant import Plant

PLANTED: Mapping[str, Plant] = {
    **exactly_once.FAULTS,
    **consistency.FAULTS,
    **values.FAULTS,
    **durability.FAULTS,
}
