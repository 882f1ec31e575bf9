"""A scheduled function on its way."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from stratagem._coordinator.remote_value import RemoteValue
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
        value: What gets its result; nothing if nobody waits for it. Spec: RMV-5.
    """

    number: int
    identity: ClosureIdentity
    name: str
    parcel: Parcel
    value: weakref.ref[RemoteValue]

    @property
    def inputs(self) -> list[RemoteValue]:
        """The values of other closures that it takes."""
        return [one for one in self.parcel.kept if isinstance(one, RemoteValue)]

    def succeed(self, payload: bytes) -> None:
        """Gives the result to who waits for it."""
        value = self.value()
        if value is not None:
            value._succeed(payload)

    def fail(self, error: BaseException) -> None:
        """Gives an error to who waits for the result."""
        value = self.value()
        if value is not None:
            value._fail(error)

    def abort(self) -> None:
        """Tells who waits for the result that there will be none."""
        value = self.value()
        if value is not None:
            value._abort()
