"""Servers whose folder of logs and images somebody else has written into."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import DataLossError, FailedPreconditionError, StratagemError
from stratagem_proto.v1.log_pb2 import LoggedMutation, LogRecord, OpenedSession
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_FLOAT32, TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import CreateVariablesHeader
from stratagem_storage.log import Entry, LogReader, encode_batch
from tests.hostile_checkpoints import Content, altered
from tests.psserver.persistence.servers import client_of, end_of, logged, segments


def left(folder: Path) -> Path:
    """The folder of a server that has one variable, in its log or, after a stop, in its image."""
    folder.mkdir()
    with logged(folder) as server, client_of(server) as client:
        client.create(v=torch.ones(3))
    return folder / "ps-0"


def image_in(folder: Path) -> Path:
    (image,) = (folder / "images").glob("checkpoint-*")
    return image


def facts_changed(**facts: object) -> Callable[[Path], None]:
    """Give the image other facts of what only images have."""

    def change(content: Content) -> None:
        content["servers"]["part-0.safetensors"]["exact"].update(facts)

    return lambda folder: altered(image_in(folder), change)


def no_facts(folder: Path) -> None:
    altered(image_in(folder), lambda content: content.update(servers={}))


def larger_tensor(folder: Path) -> None:
    def change(content: Content) -> None:
        content["tensors"][0]["spec"]["tensor"]["shape"] = [str(1 << 60)]

    altered(image_in(folder), change)


def piped(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = next(iter(folder.glob(name)))
        path.unlink()
        os.mkfifo(path)

    return change


def linked_lock(folder: Path) -> None:
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(folder.parent / "precious")


ATTACKS: dict[str, Callable[[Path], None]] = {
    "a position that is none": facts_changed(position="x"),
    "records that are none": facts_changed(records=["x"]),
    "open sessions that are none": facts_changed(open=["00" * 16]),
    "groups that are none": facts_changed(groups=7),
    "no facts": no_facts,
    "2^60 elements": larger_tensor,
    "a pipe as part": piped("images/checkpoint-*/part-0.safetensors"),
    "a pipe as latest": piped("images/latest"),
    "a pipe as segment": piped("segment-*"),
    "a link as lock": linked_lock,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_server_does_not_start_from_them(attack: Callable[[Path], None], tmp_path: Path) -> None:
    precious = tmp_path / "servers" / "precious"
    folder = left(tmp_path / "servers")
    precious.write_text("kept")
    attack(folder)
    with pytest.raises(StratagemError), logged(folder.parent):
        pass
    assert precious.read_text() == "kept"


def added(folder: Path, *records: LogRecord) -> int:
    """Write records behind those of a log, and return the position of the last one."""
    (segment,) = segments(folder)
    reader = LogReader([segment])
    deque(reader.records(), 0)
    entries = [Entry(record.SerializeToString()) for record in records]
    with segment.open("r+b") as file:
        file.seek(end_of(segment))
        file.write(b"".join(map(bytes, encode_batch(reader.position + 1, entries))))
    return reader.position + len(records)


def test_no_memory_is_taken_for_tensors_that_a_record_does_not_have(tmp_path: Path) -> None:
    folder, session = left(tmp_path / "servers").parent, bytes(16)
    spec = VariableSpec(name="huge", tensor=TensorSpec(dtype=DATA_TYPE_FLOAT32, shape=[1 << 34]))
    key = RequestKey(session_id=session, sequence=1)
    request = CreateVariablesHeader(key=key, variables=[spec]).SerializeToString()
    last = added(
        folder,
        LogRecord(opened=OpenedSession(session_id=session)),
        LogRecord(mutation=LoggedMutation(method="CreateVariables", request=request, applied=True)),
    )
    with pytest.raises(DataLossError, match=f"record {last} of the log"), logged(folder):
        pass


@pytest.mark.parametrize(
    "record", [LogRecord(mutation=LoggedMutation(method="Launch")), LogRecord(unix_seconds=1.0)]
)
def test_a_record_of_an_unknown_kind_is_refused_by_its_number(
    record: LogRecord, tmp_path: Path
) -> None:
    """As of a later release, which is not passed over."""
    folder = left(tmp_path / "servers").parent
    said = f"record {added(folder, record)} of the log is of a kind that stratagem"
    with pytest.raises(FailedPreconditionError, match=said), logged(folder):
        pass
