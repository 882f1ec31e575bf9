"""Taking what hosts are sent apart."""

from __future__ import annotations

from typing import ClassVar

from stratagem._modules.extended import HostingExtended
from stratagem._shipping.dumper import Dumper
from stratagem._shipping.residents.registered import OF_HOSTS, KindTable


class HostsDumper(Dumper):
    """Makes parcels for the hosts of a strategy. Thread-safe.

    Variables and parameters are named; their values are sent besides.

    Args:
        strategy: The strategy.
    """

    kinds: ClassVar[KindTable] = OF_HOSTS

    def _settle_parameters(self) -> None:
        extended = self._strategy.extended
        assert isinstance(extended, HostingExtended)
        extended._adopter.adopt()
