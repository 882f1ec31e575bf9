"""Asking servers to save, to restore and to keep what they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from stratagem._ps_client.requests.request import Request, sole
from stratagem._ps_client.transport import Responses
from stratagem_proto.v1 import checkpoint_pb2 as pb
from stratagem_proto.v1.publication_pb2 import PublishHeader, PublishResponse
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_storage.checkpoint.entries import TensorFile


@dataclass(frozen=True)
class SavedPart:
    """The file that a server has written, and as JSON what it needs to go on besides variables."""

    part: TensorFile
    state: str


def hold_steps(
    cut: bytes, begun: Mapping[bytes, int], wait: float
) -> Request[pb.HoldStepsResponse]:
    """Return the request that lets steps wait that have not begun.

    For each client, `begun` has the last step that has begun on some server. The server may `wait`
    so many seconds for these to be finished.
    """
    steps = [pb.ClientStep(client=client, step=step) for client, step in begun.items()]
    message = pb.HoldStepsRequest(cut=cut, begun=steps, wait_seconds=wait)
    return Request("HoldSteps", message, sole(pb.HoldStepsResponse), wait=wait)


def release_steps(cut: bytes) -> Request[pb.ReleaseStepsResponse]:
    """Return the request that gives a cut up."""
    message = pb.ReleaseStepsRequest(cut=cut)
    return Request("ReleaseSteps", message, sole(pb.ReleaseStepsResponse))


def begin_save(cut: bytes, folder: str, base: str) -> Request[pb.BeginSaveResponse]:
    """Return the request that marks the variables and begins to write them.

    Of what is in `base`, the path of an earlier checkpoint, only the rows that differ are written.
    """
    message = pb.BeginSaveRequest(cut=cut, folder=folder, base=base)
    return Request("BeginSave", message, sole(pb.BeginSaveResponse), wait=2.0)


def open_snapshot(cut: bytes) -> Request[pb.OpenSnapshotResponse]:
    """Return the request that keeps all values as they are for this session."""
    message = pb.OpenSnapshotRequest(cut=cut)
    return Request("OpenSnapshot", message, sole(pb.OpenSnapshotResponse), wait=2.0)


def close_snapshot() -> Request[pb.CloseSnapshotResponse]:
    """Return the request that gives these values up."""
    message = pb.CloseSnapshotRequest()
    return Request("CloseSnapshot", message, sole(pb.CloseSnapshotResponse))


def publish(
    cut: bytes, version: int, milliseconds: int, local: Mapping[str, torch.Tensor]
) -> Request[PublishResponse]:
    """Return the request that gives the values of a cut a number.

    It was published so many milliseconds after the epoch. `local` are values of this process, by
    name, which nobody changes from now on.
    """
    specs = [VariableSpec(name=name, tensor=spec_of(value)) for name, value in local.items()]
    header = PublishHeader(cut=cut, version=version, values=specs, published_at=milliseconds)
    return Request("Publish", header, sole(PublishResponse), tensors=[*local.values()], wait=2.0)


def finish_save(cut: bytes, wait: float) -> Request[SavedPart | None]:
    """Return the request for what was written; it gives None if that takes longer."""
    message = pb.FinishSaveRequest(cut=cut, wait_seconds=wait)
    return Request("FinishSave", message, _saved, wait=wait)


def _saved(responses: Responses) -> SavedPart | None:
    response = sole(pb.FinishSaveResponse)(responses)
    if not response.HasField("part"):
        return None
    return SavedPart(TensorFile.decoded(response.part), response.part.state)


@dataclass(frozen=True)
class CheckpointSelection:
    """What a server is to read of a checkpoint.

    Besides variables that it hosts, by name, these are the account of data, which it keeps, and
    what it had recorded of closures that had not ended.
    """

    variables: Sequence[str] = ()
    data: bool = False
    closures: bool = False


def stage_variables(
    restoration: bytes, path: str, wanted: CheckpointSelection, wait: float, least: float
) -> Request[bool]:
    """Return the request that reads what is on disk in a path, and changes nothing yet.

    It gives whether the server has read all after `wait` seconds. If not, it reads on, and the same
    request again waits for the rest. A server of the last release answers once it has read all, for
    which it gets `least` seconds. An empty path makes it forget what it read for the restoration.
    """
    message = pb.StageVariablesRequest(
        restoration=restoration,
        path=path,
        variables=wanted.variables,
        data=wanted.data,
        closures=wanted.closures,
        wait_seconds=wait,
    )
    return Request("StageVariables", message, _has_read, wait=max(wait, least))


def _has_read(responses: Responses) -> bool:
    return not sole(pb.StageVariablesResponse)(responses).is_reading


def restore_staged(
    restoration: bytes,
    run: pb.TrainingRun | None = None,
    positions: Sequence[pb.TaskPosition] = (),
) -> Request[pb.RestoreVariablesResponse]:
    """Return the request that replaces values and optimizer state by what was read.

    With a run, it begins, and tasks are so far in it.
    """
    message = pb.RestoreVariablesRequest(
        restoration=restoration, run=run, positions=positions, begins_run=run is not None
    )
    return Request("RestoreVariables", message, sole(pb.RestoreVariablesResponse))


def announce_restored(
    identity: str, run: pb.TrainingRun | None = None
) -> Request[pb.RestoreVariablesResponse]:
    """Return the request that says that a checkpoint is restored, or values are set.

    Or, without an identity, only which run has begun.
    """
    message = pb.RestoreVariablesRequest(identity=identity, run=run)
    return Request("RestoreVariables", message, sole(pb.RestoreVariablesResponse))


def list_restored() -> Request[pb.ListRestoredResponse]:
    """Return the request for what was announced, and for how far this task is in the run."""
    return Request("ListRestored", pb.ListRestoredRequest(), sole(pb.ListRestoredResponse))
