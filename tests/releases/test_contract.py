"""What the messages of the last release have become, which its processes still send and read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
)

from tests.releases.former import unpacked

LATER: Mapping[str, str] = {
    "stratagem_proto.v1.BarrierRequest.forming": "a server that does not know it opens a barrier "
    "for all workers, and tells of no generation, which the client refuses",
    "stratagem_proto.v1.BarrierResponse.generation": "it sends no request that is answered so",
    "stratagem_proto.v1.BarrierResponse.members": "likewise",
    "stratagem_proto.v1.BarrierResponse.is_awaited": "likewise",
    "stratagem_proto.v1.BarrierResponse.has_lost": "likewise",
    "stratagem_proto.v1.CommitContributionRequest.predecessors": "a server that does not know it "
    "answers that nothing is staged, and the step is repeated as it was before",
    "stratagem_proto.v1.DescribeConsistencyResponse.committed": "a server that does not know it "
    "names no step, and the worker repeats what was not committed there",
    "stratagem_proto.v1.FollowingRead.announced_rows": "it is only sent to a server that has said "
    "that rows are on a disk, which the last release has not",
    "stratagem_proto.v1.ListVersionsRequest.takes_deltas": "a server that does not know it lists "
    "no delta",
    "stratagem_proto.v1.ParameterServerStatus.table_files": "it shows the status without it",
    "stratagem_proto.v1.ReadHeader.has_rows_on_disk": "a client that does not know it announces no "
    "rows, which are read when they are asked for",
    "stratagem_proto.v1.StageVariablesRequest.wait_seconds": "a server that does not know it "
    "answers once it has read all, for which the client waits as it did before",
    "stratagem_proto.v1.StageVariablesResponse.is_reading": "it asks for no answer before "
    "all is read",
    "stratagem_proto.v1.StepBegin.optimizer": "a server that does not know it compares no "
    "optimizers, as it did before",
    "stratagem_proto.v1.SavedTensor.delta": "it is in parts of format 2 and checkpoints of format "
    "5 only, which the last release refuses by name",
}
"""The fields, by their full names, that messages of the last release have got since, and what it
makes of one that it does not know. Where that would not do, whoever sets the field has to ask for
the version that both ends speak (`agreed_version`), and refuse by name."""

DUMP = """
import importlib, pkgutil, sys
import stratagem_proto.v1 as v1
from google.protobuf.descriptor_pb2 import FileDescriptorSet
found = FileDescriptorSet()
for each in pkgutil.iter_modules(v1.__path__):
    if each.name.endswith("_pb2"):
        module = importlib.import_module(f"{v1.__name__}.{each.name}")
        module.DESCRIPTOR.CopyToProto(found.file.add())
sys.stdout.buffer.write(found.SerializeToString())
"""

Types: TypeAlias = dict[str, DescriptorProto | EnumDescriptorProto]


class Contract:
    """The messages, enums and calls of a release, by their full names."""

    def __init__(self, files: FileDescriptorSet) -> None:
        self.types: Types = {}
        self.calls: dict[str, object] = {}
        for file in files.file:
            for enum in file.enum_type:
                self.types[f"{file.package}.{enum.name}"] = enum
            for message in file.message_type:
                self.types.update(_nested(file.package, message))
            for service in file.service:
                for call in service.method:
                    shape = call.client_streaming, call.server_streaming
                    kinds = call.input_type, call.output_type
                    self.calls[f"{file.package}.{service.name}.{call.name}"] = (*kinds, *shape)


def _nested(scope: str, message: DescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    name = f"{scope}.{message.name}"
    yield name, message
    for inner in message.nested_type:
        yield from _nested(name, inner)


def contract(path: list[str]) -> Contract:
    """That of the release that comes first on an import path."""
    program = f"import sys; sys.path[:0] = {path!r}\n{DUMP}"
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    return Contract(FileDescriptorSet.FromString(ended.stdout))


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    return contract([str(unpacked(tmp_path_factory.mktemp("former")))])


@pytest.fixture(scope="module")
def present() -> Contract:
    return contract([str(Path(__file__).parents[2] / "proto")])


def shape(field: FieldDescriptorProto) -> tuple[object, ...]:
    return field.name, field.type, field.type_name, field.label


def test_all_calls_of_the_last_release_are_still_there(former: Contract, present: Contract) -> None:
    assert former.calls.items() <= present.calls.items()


def test_no_field_and_no_value_of_the_last_release_means_something_else(
    former: Contract, present: Contract
) -> None:
    for name, was in former.types.items():
        now = present.types[name]
        if isinstance(was, EnumDescriptorProto):
            assert isinstance(now, EnumDescriptorProto)
            values = {value.number: value.name for value in now.value}
            assert {value.number: value.name for value in was.value}.items() <= values.items()
            continue
        assert isinstance(now, DescriptorProto)
        fields = {field.number: shape(field) for field in now.field}
        for field in was.field:
            assert fields.get(field.number) == shape(field), (
                f"{name}.{field.name} of the last release has another meaning now"
            )


def test_somebody_has_thought_of_what_the_last_release_makes_of_each_new_field(
    former: Contract, present: Contract
) -> None:
    later = {
        f"{name}.{field.name}"
        for name, was in former.types.items()
        if isinstance(was, DescriptorProto)
        for field in _fields(present.types[name])
        if field.number not in {each.number for each in was.field}
    }
    assert later == LATER.keys(), "say in LATER what the last release makes of these"


def _fields(message: DescriptorProto | EnumDescriptorProto) -> list[FieldDescriptorProto]:
    assert isinstance(message, DescriptorProto)
    return list(message.field)
