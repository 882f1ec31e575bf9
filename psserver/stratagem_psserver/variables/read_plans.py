"""Plans of the answers to requests that read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, starmap
from typing import NamedTuple

import torch

from stratagem_proto.v1.parameter_server_pb2 import (
    JointRows,
    ReadContents,
    ReadHeader,
    ReadValue,
    Selection,
)
from stratagem_proto.wire.placed import SegmentLayout, all_of, layout_of
from stratagem_psserver.variables.held_snapshots import HeldSnapshot
from stratagem_psserver.variables.selections import (
    Selected,
    SelectedRows,
    is_wanted,
    select,
    select_rows,
)
from stratagem_psserver.variables.store import Variable, VariableStore


class ReadPlan(NamedTuple):
    """The plan of an answer: which of the selected values are sent, and where.

    Attributes:
        variables: The selected variables, in the order of the selections; without those of which
            joint rows are sent.
        wanted: For each variable, whether the reader lacks its present version.
        selected: The parts of the wanted variables that are sent, and then the joint rows.
        contents: The encoded `ReadContents` that describes the answer to the reader.
        layout: The layout of the values in shared memory.
        nbytes: The bytes of memory that it takes to prepare the values.
        owners: The owners of all variables, whose locks protect them.
        is_whole: Whether only whole variables and slices are sent, and no rows.
    """

    variables: Sequence[Variable]
    wanted: Sequence[bool]
    selected: Sequence[Selected | SelectedRows]
    contents: bytes
    layout: SegmentLayout
    nbytes: int
    owners: frozenset[str]
    is_whole: bool

    @classmethod
    def of(
        cls, variables: VariableStore | HeldSnapshot, selections: Sequence[Selection]
    ) -> ReadPlan:
        """Plan the answer to some selections.

        Raises:
            VariableNotFoundError: There is no such variable.
            InvalidArgumentError: As for `select`.
            RowIndexError: As for `select`.
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
            owners=frozenset([one.owner for one in found]),
            is_whole=all([isinstance(one, Selected) for one in selected]),
        )

    def with_rows(
        self, variables: VariableStore | HeldSnapshot, joint_rows: Sequence[JointRows]
    ) -> ReadPlan:
        """Return a plan that also sends rows.

        Raises:
            VariableNotFoundError: There is no such variable.
            InvalidArgumentError: As for `select_rows`.
            RowIndexError: As for `select_rows`.
        """
        if not joint_rows:
            return self
        joint = [[*map(variables.get, rows.variables)] for rows in joint_rows]
        rows = list(map(select_rows, joint, joint_rows))
        selected, wanted = [*self.selected, *rows], [*self.wanted, *[True] * len(rows)]
        layout = layout_of(tuple([one.kind for one in selected]))
        return self._replace(
            wanted=wanted,
            selected=selected,
            contents=_contents(wanted, selected, layout),
            layout=layout,
            nbytes=self.nbytes + sum([one.nbytes for one in rows]),
            owners=self.owners.union([one.owner for each in joint for one in each]),
            is_whole=False,
        )

    def is_still(self, selections: Sequence[Selection]) -> bool:
        """Return whether the plan still holds for these selections of the same parts.

        It does if they lack the present versions of the same variables.
        """
        return self.wanted == _wanted(self.variables, selections)

    def present_header(self) -> ReadHeader:
        """Return the header of the answer, with the present versions."""
        versions = [variable.version for variable in self.variables]
        versions += [0] * (len(self.wanted) - len(versions))
        return ReadHeader(versions=versions, contents=self.contents)

    def tensors(self) -> list[torch.Tensor]:
        """Return the values."""
        return [one.tensor() for one in self.selected]

    def fill(self, into: Sequence[torch.Tensor]) -> None:
        """Copy the values into tensors of their kinds."""
        if not self.selected:
            return
        with torch.no_grad():
            if self.is_whole:
                torch._foreach_copy_([*into], self.tensors())
            else:
                for one, tensor in zip(self.selected, into, strict=True):
                    one.fill(tensor)


def _contents(
    wanted: Sequence[bool], selected: Sequence[Selected | SelectedRows], layout: SegmentLayout
) -> bytes:
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


def _wanted(variables: Sequence[Variable], selections: Sequence[Selection]) -> list[bool]:
    return list(map(is_wanted, variables, selections))
