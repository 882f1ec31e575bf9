"""Taking what hosts are sent apart."""

from __future__ import annotations

from stratagem._hosting.modules.extended import HostingExtended
from stratagem._shipping.closure_pickler import ClosurePickler


class HostsPickler(ClosurePickler):
    """Makes parcels for the hosts of a strategy. Thread-safe.

    Variables and parameters are named; their values are sent besides.
    """

    def _settle_parameters(self) -> None:
        extended = self._strategy.extended
        assert isinstance(extended, HostingExtended)
        extended._adopter.adopt()
