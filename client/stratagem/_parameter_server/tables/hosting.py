"""Parameters of modules that are tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stratagem._hosting.modules.hosted_parameter import HostedParameter
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.variable import TableVariable


class HostedTable(HostedParameter):
    """A module's parameter whose values are read and written where they are.

    There is no copy to be kept equal; each replica has a parameter of its own for the sake of its
    gradient.

    Args:
        table: The variable.
        parameter: The user's parameter.
        devices: The device of each replica of this process.
    """

    def __init__(
        self, table: TableVariable, parameter: TableParameter, devices: Sequence[torch.device]
    ) -> None:
        parameter.source, parameter.initial = table, None
        others = [TableParameter.of(table, parameter) for _ in devices[1:]]
        super().__init__(table, parameter, devices, others)
        self._table = table
        table.show_in(self)

    def written_locally(self) -> bool:
        """Give the servers what a module was given in the parameter's place."""
        for parameter in list(self._replacements()):
            self._table.replace(parameter.detach())
            self._replace(self.parameter)
        for leaf in self.leaves[1:]:
            leaf.requires_grad_(self.parameter.requires_grad)
        return False

    def accept_everywhere(self) -> None:
        """There is nothing that could be behind."""

    def accept(self) -> None:
        """There is nothing that could be behind."""
