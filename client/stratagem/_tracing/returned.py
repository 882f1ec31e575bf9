"""What an update function that writes returns, and how it comes back from a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch

from stratagem._core.nests import map_leaves
from stratagem._core.variables import Variable
from stratagem._tracing.inputs import TracedInputs, TracedVariable
from stratagem._tracing.numbers import is_traced, node_of
from stratagem._tracing.recording import RecordedValue, Source
from stratagem._tracing.source import Location, refused
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.graph_program import check_output_size

# These are the same whenever the function returns them, and nobody changes them.
_CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    Enum,
    np.generic,
    torch.device,
    torch.dtype,
    torch.memory_format,
)


@dataclass(frozen=True)
class _Source:
    """Something that the call was given, by its number among the sources."""

    number: int


@dataclass(frozen=True)
class _Output:
    """An output of the program, by its number; a number of Python if it was one."""

    number: int
    is_number: bool


class Returned:
    """A function's result, in which places stand for what differs between calls.

    Args:
        result: A nest of what the function returned for stand-ins.
        inputs: The stand-ins.
        location: Where the function is defined.

    Attributes:
        outputs: The values that the program has to give back, in order.

    Raises:
        UpdateFunctionError: It holds something that no server gives back, or more than is kept with
            an answer.
    """

    def __init__(self, result: Any, inputs: TracedInputs, location: Location) -> None:
        self.outputs: list[RecordedValue] = []
        self._inputs, self._location = inputs, location
        self._nbytes = 0
        self._places = map_leaves(self._place, result)
        try:
            check_output_size(self._nbytes)
        except InvalidArgumentError as error:
            what, _, cure = error.message.partition(". ")
            raise refused(what, cure, location) from None

    def filled(self, sources: Sequence[Source], outputs: Sequence[torch.Tensor]) -> Any:
        """Return the result of one call: a new nest of what came of it."""

        def fill(leaf: Any) -> Any:
            if isinstance(leaf, _Source):
                return sources[leaf.number]
            if not isinstance(leaf, _Output):
                return leaf
            output = outputs[leaf.number]
            return output.item() if leaf.is_number else output

        return map_leaves(fill, self._places)

    def _place(self, leaf: Any) -> Any:
        if isinstance(leaf, Variable):
            stand_in = self._inputs.replacement(leaf)
            leaf = stand_in.value() if isinstance(stand_in, TracedVariable) else leaf
        if isinstance(leaf, torch.Tensor):
            return self._place_of(self._inputs.recording.value_of(leaf), leaf)
        if is_traced(leaf):
            return self._place_of(node_of(leaf).key, None)
        if not isinstance(leaf, _CONSTANTS):
            raise refused(
                f"the update function returns a {type(leaf).__name__}, which does not "
                "come back from a server",
                "return tensors, variables, numbers, text, or a nest of them",
                self._location,
            )
        return leaf

    def _place_of(self, value: RecordedValue, tensor: torch.Tensor | None) -> Any:
        if value.source is not None:
            return _Source(self._inputs.number_of(value))
        if value not in self.outputs:
            self.outputs.append(value)
            self._nbytes += 0 if tensor is None else tensor.numel() * tensor.itemsize
        return _Output(self.outputs.index(value), is_number=tensor is None)
