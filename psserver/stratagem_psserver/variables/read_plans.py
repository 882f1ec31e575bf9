"""What is answered to those who read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, starmap
from typing import NamedTuple

import torch

from stratagem_proto.v1.parameter_server_pb2 import ReadContents, ReadHeader, ReadValue, Selection
from stratagem_proto.wire.contents import all_of
from stratagem_proto.wire.placed import SegmentLayout, layout_of
from stratagem_psserver.variables.held_snapshots import HeldSnapshot
from stratagem_psserver.variables.selections import Selected, is_wanted, select
from stratagem_psserver.variables.store import Variable, VariableStore


class ReadPlan(NamedTuple):
    """Which of the values that somebody selects are answered.

    Attributes:
        variables: What was selected of, in the order of the selections.
        wanted: For each of them, whether the reader lacks the present version.
        selected: What is answered of those.
        contents: A `ReadContents` that says so to the reader, encoded.
        layout: Of the values in shared memory.
        nbytes: What it takes to make them ready.
        owners: Under whose locks the variables are.
        is_whole: Whether it is of whole variables or slices, and not of rows.
    """

    variables: Sequence[Variable]
    wanted: Sequence[bool]
    selected: Sequence[Selected]
    contents: bytes
    layout: SegmentLayout
    nbytes: int
    owners: frozenset[str]
    is_whole: bool

    @classmethod
    def of(
        cls, variables: VariableStore | HeldSnapshot, selections: Sequence[Selection]
    ) -> ReadPlan:
        """Make a choice of variables that are there.

        Raises:
            VariableNotFoundError: One of them is not.
            InvalidArgumentError: As of `select`.
            RowIndexError: As of `select`.
        """
        found = [variables.get(selection.variable) for selection in selections]
        wanted = _wanted(found, selections)
        pairs = zip(found, selections, strict=True)
        selected = list(starmap(select, compress(pairs, wanted)))
        layout = layout_of(tuple([one.kind for one in selected]))
        return cls(
            variables=found,
            wanted=wanted,
            selected=selected,
            contents=_contents(wanted, selected, layout),
            layout=layout,
            nbytes=sum([one.nbytes for one in selected]),
            owners=frozenset([one.spec.slot_of or one.spec.name for one in found]),
            is_whole=all([one.rows is None for one in selected]),
        )

    def is_still(self, selections: Sequence[Selection]) -> bool:
        """Whether it is the one for selections of the same parts of its variables."""
        return self.wanted == _wanted(self.variables, selections)

    def present_header(self) -> ReadHeader:
        """Return the header of an answer, with the present versions."""
        versions = [variable.version for variable in self.variables]
        return ReadHeader(versions=versions, contents=self.contents)

    def tensors(self) -> list[torch.Tensor]:
        """Return the values."""
        return [each.tensor() for each in self.selected]

    def fill(self, into: Sequence[torch.Tensor]) -> None:
        """Copy the values to tensors of their kinds, in one go."""
        if not self.selected:
            return
        with torch.no_grad():
            if self.is_whole:
                torch._foreach_copy_([*into], self.tensors())
                return
            for each, tensor in zip(self.selected, into, strict=True):
                each.fill(tensor)


def _contents(wanted: Sequence[bool], selected: Sequence[Selected], layout: SegmentLayout) -> bytes:
    encodings = [one.encoding for one in selected]
    if all(wanted) and not any(encodings):
        return all_of(layout)
    values = [
        ReadValue(tensor=number, encoding=encoding) for number, encoding in enumerate(encodings)
    ]
    sent = iter(values)
    return ReadContents(
        values=[next(sent) if lacks else ReadValue() for lacks in wanted],
        tensors=[one.sent for one in selected],
    ).SerializeToString()


def _wanted(variables: Sequence[Variable], selections: Sequence[Selection]) -> Sequence[bool]:
    return list(map(is_wanted, variables, selections))
