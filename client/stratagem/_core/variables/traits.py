"""What a variable is called and how it is meant to be used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stratagem._core.enums import VariableAggregation, VariableSynchronization
from stratagem_proto.errors import InvalidArgumentError


@dataclass(frozen=True)
class VariableTraits:
    """What a variable is called and how it is meant to be used."""

    name: str
    trainable: bool
    synchronization: VariableSynchronization
    aggregation: VariableAggregation

    @classmethod
    def of(
        cls,
        name: str | None = None,
        trainable: bool | None = None,
        synchronization: VariableSynchronization | None = None,
        aggregation: VariableAggregation | None = None,
    ) -> VariableTraits:
        """Return the traits with open ones filled in.

        Raises:
            InvalidArgumentError: A mode is not a member of its enumeration. Spec: VAR-15, VAR-19,
                VAR-21, VAR-22.
        """
        name = name or "Variable"
        synchronization = synchronization or VariableSynchronization.AUTO
        aggregation = aggregation or VariableAggregation.NONE
        require_member(VariableSynchronization, synchronization, name)
        require_member(VariableAggregation, aggregation, name)
        if trainable is None:
            trainable = synchronization is not VariableSynchronization.ON_READ
        return cls(name, trainable, synchronization, aggregation)


def require_member(enumeration: type[Enum], mode: object, name: str) -> None:
    """Check that a mode is a member of its enumeration.

    Args:
        enumeration: The enumeration.
        mode: What the user passed.
        name: Name of the variable, for the message.

    Raises:
        InvalidArgumentError: It is not. Spec: VAR-21, VAR-22.
    """
    if not isinstance(mode, enumeration):
        kind = enumeration.__name__.removeprefix("Variable").lower()
        raise InvalidArgumentError(
            f"Invalid variable {kind} mode: {mode!r} for variable {name!r}; pass a "
            f"member of {enumeration.__name__}"
        )
