"""Asking a server to save and to restore, as the chief does."""

from __future__ import annotations

import os
from pathlib import Path

from stratagem_proto.v1 import checkpoint_pb2 as pb
from tests.psserver.wire import RawClient

_SERVICE = "stratagem_proto.v1.CheckpointService"
_SECONDS = 30.0


def stage(client: RawClient, path: Path | str) -> None:
    """Have the server read "w" and "v" from a checkpoint, with the ledgers."""
    request = pb.StageVariablesRequest(
        session_id=client.session_id,
        restoration=os.urandom(16),
        path=str(path),
        variables=["w", "v"],
        data=True,
        closures=True,
    )
    client.unary("StageVariables", request, pb.StageVariablesResponse, service=_SERVICE)


def save_to(client: RawClient, folder: Path | str, base: Path | str = "") -> pb.SavedPart:
    """Have the server write its part into a folder, of a base only what differs."""
    cut, session = os.urandom(16), client.session_id
    hold = pb.HoldStepsRequest(session_id=session, cut=cut)
    client.unary("HoldSteps", hold, pb.HoldStepsResponse, service=_SERVICE)
    begin = pb.BeginSaveRequest(session_id=session, cut=cut, folder=str(folder), base=str(base))
    client.unary("BeginSave", begin, pb.BeginSaveResponse, service=_SERVICE)
    finish = pb.FinishSaveRequest(session_id=session, cut=cut, wait_seconds=_SECONDS)
    return client.unary("FinishSave", finish, pb.FinishSaveResponse, service=_SERVICE).part
