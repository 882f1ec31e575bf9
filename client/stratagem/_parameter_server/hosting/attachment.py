"""Finding the variables that the chief creates."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stratagem._core.waiting import Wait
from stratagem_proto.errors import AttachmentError
from stratagem_proto.v1.variable_pb2 import VariableInfo, VariableSpec
from stratagem_proto.wire.tensors import decode_dtype

_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
_SHOWN_NAMES = 10

Listing = Callable[[], Mapping[int, Sequence[VariableInfo]]]


class Attachment:
    """What this worker knows of the variables that the chief has created.

    Args:
        worker: Name of this task, for messages.
        chief: The task that creates them, and where it is; likewise.
        listing: Asks the servers what they host, by index of the server.
        seconds: How long to wait for the chief.
    """

    def __init__(self, worker: str, chief: str, listing: Listing, seconds: float) -> None:
        self._worker = worker
        self._chief = chief
        self._listing = listing
        self._seconds = seconds
        self._created: dict[int, Found] = {}

    def attach(self, wanted: Sequence[VariableSpec]) -> list[Found]:
        """Wait until the chief has created variables, and compare them.

        Args:
            wanted: The variables as this worker would have created them.

        Returns:
            What the chief created, in the same order.

        Raises:
            AttachmentError: A variable differs, which is said at once; or some are missing after
                the time to wait.
        """
        if self._missing(wanted):
            whom = f"the chief, {self._chief}, to create {wanted[0].name!r}"
            with Wait(self._worker, whom, self._seconds):
                self._await(wanted)
        return [self._created[spec.ordinal] for spec in wanted]

    def _await(self, wanted: Sequence[VariableSpec]) -> None:
        give_up_at = time.monotonic() + self._seconds
        pause = _FIRST_PAUSE_SECONDS
        while missing := self._missing(wanted):
            if time.monotonic() >= give_up_at:
                raise self._lacking(missing, len(wanted))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            self._look()

    def _missing(self, wanted: Sequence[VariableSpec]) -> list[VariableSpec]:
        if any(spec.ordinal not in self._created for spec in wanted):
            self._look()
        for spec in wanted:
            found = self._created.get(spec.ordinal)
            if found is not None and traits(found.spec) != traits(spec):
                raise self._difference(found.spec, spec)
        return [spec for spec in wanted if spec.ordinal not in self._created]

    def _look(self) -> None:
        self._created |= find(self._listing())

    def _difference(self, theirs: VariableSpec, ours: VariableSpec) -> AttachmentError:
        return AttachmentError(
            f"variable {ours.ordinal} of the chief's program is {described(theirs)}, "
            f"but of {self._worker}'s it is {described(ours)}; run the same program "
            "on all workers, with the same settings",
            variable=ours.name,
            task=self._worker,
        )

    def _lacking(self, missing: Sequence[VariableSpec], wanted: int) -> AttachmentError:
        names = ", ".join(spec.name for spec in missing[:_SHOWN_NAMES])
        rest = len(missing) - _SHOWN_NAMES
        return AttachmentError(
            f"{self._worker} waited {self._seconds:g} s for the chief to create "
            f"{wanted} variables; {len(missing)} are missing: {names}"
            f"{f' and {rest} more' if rest > 0 else ''}. Check that the chief runs the "
            "same program and has not failed",
            variable=missing[0].name,
            task=self._worker,
        )


class Found(NamedTuple):
    """A variable that the chief created, and the index of its server."""

    server: int
    spec: VariableSpec


def find(listing: Mapping[int, Sequence[VariableInfo]]) -> dict[int, Found]:
    """Return the variables that a chief created, by their place in its order."""
    return {
        info.spec.ordinal: Found(server, info.spec)
        for server, infos in listing.items()
        for info in infos
        if info.spec.HasField("ordinal")
    }


def traits(spec: VariableSpec) -> tuple[object, ...]:
    """Return that in which the programs of all tasks and runs have to agree."""
    tensor = spec.tensor
    return (
        spec.name,
        spec.module_path,
        tensor.dtype,
        tuple(tensor.shape),
        tuple(spec.partition.full_shape),
        tuple(spec.partition.offset),
    )


def described(spec: VariableSpec) -> str:
    """Return these traits for a message."""
    owner = f" in {spec.module_path}" if spec.module_path else ""
    dtype = str(decode_dtype(spec.tensor.dtype)).removeprefix("torch.")
    part = f"{dtype}, shape {tuple(spec.tensor.shape)}"
    if spec.HasField("partition"):
        whole = tuple(spec.partition.full_shape)
        part += f" from row {spec.partition.offset[0]} of {whole}"
    return f"{spec.name!r} ({part}{owner})"
