"""A scheduled function on its way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stratagem._coordinator.closures.result import Result, results_among
from stratagem._shipping.parcel import Parcel
from stratagem_proto.v1.session_pb2 import ClosureIdentity


@dataclass(frozen=True)
class Closure:
    """A function with its arguments, until it ends.

    Attributes:
        number: Its number among those of its coordinator.
        identity: What servers know by it that they have been asked before.
        name: What errors call it.
        parcel: What is sent to the worker that runs it.
        result: What it returns.
    """

    number: int
    identity: ClosureIdentity
    name: str
    parcel: Parcel
    result: Result

    @cached_property
    def inputs(self) -> list[Result]:
        """The results of other closures that it takes."""
        return results_among(self.parcel.remote_objects.values())

    @property
    def unmet(self) -> list[int]:
        """The closures for whose results it has to wait."""
        return [one.closure for one in self.inputs if not one.met]

    @property
    def failure(self) -> BaseException | None:
        """Why it will never have an input, if that is so."""
        for one in self.inputs:
            if one.error is not None:
                return one.error
        return None
