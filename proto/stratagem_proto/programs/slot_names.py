"""The names of variables that keep the state of optimizers."""

from __future__ import annotations

import re
from typing import NamedTuple

from stratagem_proto.programs.optimizers import OPTIMIZERS

# What tells optimizers of one class apart.
_NUMBER = re.compile(r"_\d+$")


class SlotName(NamedTuple):
    """The name of a slot variable, part by part.

    Attributes:
        variable: The name of the variable that it belongs to.
        optimizer: The name of the optimizer, such as "Adam" or "Adam_1".
        key: The name of the state in torch, such as "exp_avg".
    """

    variable: str
    optimizer: str
    key: str

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def parse(cls, name: str) -> SlotName | None:
        """Return the parts of a name; None if it cannot be that of a slot variable.

        Other variables may be named likewise.
        """
        found = cls(*("", "", *name.rsplit("/", 2))[-3:])
        return found if names_optimizer(found.optimizer) else None


def names_optimizer(name: str) -> bool:
    """Return whether an optimizer on the allow-list may have this name."""
    return _NUMBER.sub("", name) in OPTIMIZERS
