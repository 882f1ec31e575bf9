"""What is answered to those who read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from stratagem_proto.v1.parameter_server_pb2 import (
    ReadContents,
    ReadHeader,
    Selection,
)
from stratagem_proto.wire.placed import Layout, layout_of
from stratagem_psserver.variables.held_snapshots import HeldSnapshot
from stratagem_psserver.variables.selections import Selected, is_wanted, select
from stratagem_psserver.variables.store import Variable, VariableStore


@dataclass(frozen=True)
class Choice:
    """Which of the values that somebody selects are answered.

    Attributes:
        variables: What was selected of, in the order of the selections.
        wanted: For each of them, whether the reader lacks the present version.
        selected: What is answered of those.
        contents: A `ReadContents` that says so to the reader, encoded.
        layout: Of the values in shared memory.
        nbytes: What it takes to make them ready.
    """

    variables: Sequence[Variable]
    wanted: Sequence[bool]
    selected: Sequence[Selected]
    contents: bytes
    layout: Layout
    nbytes: int

    @classmethod
    def of(
        cls, variables: VariableStore | HeldSnapshot, selections: Sequence[Selection]
    ) -> Choice:
        """Makes a choice of variables that are there.

        Raises:
            VariableNotFoundError: One of them is not.
            InvalidArgumentError: As of `select`.
            OutOfRangeError: As of `select`.
        """
        found = [variables.get(selection.variable) for selection in selections]
        contents, selected = ReadContents(), list[Selected]()
        for variable, selection in zip(found, selections, strict=True):
            value = contents.values.add()
            if is_wanted(variable, selection):
                chosen = select(variable, selection)
                value.tensor = len(selected)
                if (encoding := chosen.encoding) is not None:
                    value.encoding.CopyFrom(encoding)
                contents.tensors.append(chosen.sent)
                selected.append(chosen)
        return cls(
            found,
            _wanted(found, selections),
            selected,
            contents.SerializeToString(),
            layout_of(tuple([each.kind for each in selected])),
            sum(each.nbytes for each in selected),
        )

    @cached_property
    def owners(self) -> frozenset[str]:
        """Under whose locks its variables are."""
        specs = [variable.spec for variable in self.variables]
        return frozenset([spec.slot_of or spec.name for spec in specs])

    @cached_property
    def is_whole(self) -> bool:
        """Whether it is of whole variables or slices, and not of rows."""
        return all(each.rows is None for each in self.selected)

    def is_still(self, selections: Sequence[Selection]) -> bool:
        """Whether it is the one for selections of the same parts of its variables."""
        return self.wanted == _wanted(self.variables, selections)

    def present_header(self) -> ReadHeader:
        """The header of an answer, with the present versions."""
        versions = [variable.version for variable in self.variables]
        return ReadHeader(versions=versions, contents=self.contents)

    def tensors(self) -> list[torch.Tensor]:
        """The values."""
        return [each.tensor() for each in self.selected]

    def fill(self, into: Sequence[torch.Tensor]) -> None:
        """Copies the values to tensors of their kinds, in one go."""
        if not self.selected:
            return
        with torch.no_grad():
            if self.is_whole:
                torch._foreach_copy_([*into], self.tensors())
                return
            for each, tensor in zip(self.selected, into, strict=True):
                each.fill(tensor)


def _wanted(
    variables: Sequence[Variable], selections: Sequence[Selection]
) -> Sequence[bool]:
    return list(map(is_wanted, variables, selections))
