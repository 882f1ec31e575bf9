"""Faults that spoil values and what belongs to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from google.protobuf.message import Message

from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.wire.tensors import as_bytes
from stratagem_psserver.exactly_once.receiving import Manifest, StagedTensors
from stratagem_psserver.log.changes import Changes, LoggedRequest, Mutation
from stratagem_psserver.rpcs import values
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.assignments import PreparedWrite
from tests.simulation.planted.plant import Plant, replaced, strikes

_close_session = ServerState.close_session
_logged = Changes.request
_mutated = Changes.mutated
_owned = StagedTensors.owned


def _loses_slots(self: ServerState, session_id: bytes) -> None:
    """Begin all slots anew when a client leaves."""
    for variable in self.store.variables():
        if variable.spec.slot_of:
            variable.value.zero_()
    _close_session(self, session_id)


def _keeps_version(write: PreparedWrite) -> int:
    """Give two values of a variable the same version now and then."""
    write.variable.version += not strikes()
    return write.variable.version


def _copies_nothing(self: StagedTensors, manifest: Manifest) -> StagedTensors:
    """Apply tensors from memory that their client can still change."""
    return self


class _Copied(list[torch.Tensor]):
    """Tensors that were copied out of shared memory."""

    shared: Sequence[torch.Tensor]


def _remembers_shared(self: StagedTensors, manifest: Manifest) -> StagedTensors:
    """Copy tensors, and remember where they were."""
    owned = _owned(self, manifest)
    if self.segment is None:
        return owned
    copied = _Copied(owned.tensors)
    copied.shared = self.tensors
    return replace(owned, tensors=copied)


class _LateRequest(LoggedRequest):
    """A request whose tensors are taken when it is logged."""

    shared: Sequence[torch.Tensor]


def _takes_late(
    self: Changes, response_type: type[Message], request: Mutation, tensors: Any = ()
) -> LoggedRequest | None:
    """Leave the tensors out that were copied from shared memory."""
    logged = _logged(self, response_type, request, tensors)
    if logged is None or not isinstance(tensors, _Copied):
        return logged
    late = _LateRequest(logged.method, logged.request)
    late.shared = tensors.shared
    return late


def _logs_late(self: Changes, request: LoggedRequest, reply: RecordedReply | None) -> None:
    """Log what is in shared memory once a request was applied, in place of the copy."""
    if isinstance(request, _LateRequest):
        request.tensors = b"".join(map(as_bytes, request.shared))
    _mutated(self, request, reply)


@contextmanager
def _logging_from_shared_memory() -> Iterator[None]:
    with (
        patch.object(StagedTensors, "owned", _remembers_shared),
        patch.object(Changes, "request", _takes_late),
        patch.object(Changes, "mutated", _logs_late),
    ):
        yield


FAULTS: Mapping[str, Plant] = {
    "slots are lost": replaced(ServerState, "close_session", _loses_slots),
    "a version is used again": replaced(values, "_next_version", _keeps_version),
    "shared memory is not copied": replaced(StagedTensors, "owned", _copies_nothing),
    "the log is from shared memory": _logging_from_shared_memory,
}
