"""What a checkpoint has for variables that are made after it was restored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from stratagem._checkpoints.entry import CheckpointEntry
from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.programs.slot_names import SlotName

Slots = dict[str, dict[str, torch.Tensor]]
"""The state that optimizers have for one variable, by optimizer and torch's key."""


class DeferredState:
    """The values of a checkpoint that nothing has taken yet."""

    def __init__(self) -> None:
        self._values: dict[str, torch.Tensor] = {}
        self._slot_names: defaultdict[str, list[SlotName]] = defaultdict(list)

    def replace(self, values: Mapping[str, torch.Tensor]) -> None:
        """Forget the values there are, and have others from now on."""
        self._values = dict(values)
        self._slot_names.clear()
        for name in values:
            slot = SlotName.parse(name)
            if slot is not None:
                self._slot_names[slot.variable].append(slot)

    def names(self) -> list[str]:
        """Return the names of the values."""
        return sorted(self._values)

    def restore(self, entry: CheckpointEntry) -> None:
        """Write to `entry` its value, if there is one, which is then taken.

        Raises:
            InvalidArgumentError: It does not fit.
        """
        if entry.name in self._values:
            entry.require_fit(self._values[entry.name])
            entry.write(self._values.pop(entry.name))

    def take_slots(self, variable: str) -> Slots:
        """Return the optimizers' state for a variable, and forget it."""
        slots: Slots = defaultdict(dict)
        for slot in self._slot_names.pop(variable, ()):
            # A variable may have been named like this itself.
            if str(slot) in self._values:
                slots[slot.optimizer][slot.key] = self._values.pop(str(slot))
        return slots


class UnusedValues(Protocol):
    """What a checkpoint has that nothing has taken yet."""

    def names(self) -> list[str]:
        """Return the names of the values."""


class Restoration:
    """What became of a checkpoint that was restored. Spec: CKP-2.

    Args:
        deferred: What nothing has taken yet.
        extra: What `save` was given to keep besides values.

    Attributes:
        extra: What `save` was given to keep besides values.
    """

    def __init__(self, deferred: UnusedValues, extra: Mapping[str, Any] | None = None) -> None:
        self._deferred = deferred
        self.extra: Mapping[str, Any] = extra or {}

    @property
    def unused(self) -> list[str]:
        """The names for which nothing has been made so far."""
        return self._deferred.names()

    def assert_consumed(self) -> None:
        """Check that everything in the checkpoint has been used.

        Raises:
            FailedPreconditionError: Something has not.
        """
        if self.unused:
            raise FailedPreconditionError(
                f"the checkpoint has {', '.join(map(repr, self.unused))}, for which "
                "this program has made no variable; make it under the same name, or "
                "leave the check out"
            )
