"""A reader that follows one server by the bare contract, and what the server has, to compare."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import grpc
import numpy as np
import torch
import zstandard

from stratagem_proto.errors import NotPrimaryError
from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1 import publication_pb2 as pb
from stratagem_proto.v1.checkpoint_pb2 import SavedTensor
from stratagem_proto.v1.session_pb2 import ROLE_READER, OpenSessionRequest, Role, Task
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.status import translated
from stratagem_proto.wire.tensors import decode_dtype
from stratagem_psserver.server import ParameterServer
from stratagem_rpc.channel import open_channel
from stratagem_storage.checkpoint.entries import row_count, row_nbytes, stored_tensor
from tests.conftest import TOKEN
from tests.rpc_methods import prove

SERVICE = pb.DESCRIPTOR.services_by_name["PublicationService"].full_name
SECONDS = 30.0
BLOCK = 1 << 20

Contents = dict[str, bytes]


class Follower:
    """Follows one server.

    Attributes:
        version: The version that it has; 0 for none.
        taken: The links that it has taken.
        bytes: Of files that it has received.
        deltas: The tensors that it has received as deltas.
    """

    def __init__(
        self, address: str, token: str = TOKEN, role: Role = ROLE_READER, task: Task | None = None
    ) -> None:
        self.address, self._token, self._role, self._task = address, token, role, task
        self.version, self.cut = 0, b""
        self.contents: Contents = {}
        self.taken: list[pb.VersionLink] = []
        self.nbytes = 0
        self.deltas: set[str] = set()

    def _asking(self, channel: grpc.Channel, method: str) -> OpenSessionRequest:
        asking = OpenSessionRequest(
            protocol_version=PROTOCOL_VERSION, role=self._role, task=self._task
        )
        if self._token:
            prove(channel, self._token, method, asking, SECONDS)
        return asking

    def list(self, after: int = 0, seconds: float = 0.0) -> pb.ListVersionsResponse:
        with open_channel(self.address) as channel, translated("the server", "ListVersions"):
            request = pb.ListVersionsRequest(
                asking=self._asking(channel, "ListVersions"),
                after=after,
                wait_seconds=seconds,
                takes_deltas=True,
            )
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
            call = channel.unary_unary(f"/{SERVICE}/ListVersions")
            data = call(request.SerializeToString(), timeout=SECONDS)
        return pb.ListVersionsResponse.FromString(data)

    def messages(self, version: int, previous: int = 0) -> Iterator[pb.ReadVersionResponse]:
        with open_channel(self.address) as channel, translated("the server", "ReadVersion"):
            request = pb.ReadVersionRequest(
                asking=self._asking(channel, "ReadVersion"), version=version, previous=previous
            )
            call: grpc.UnaryStreamMultiCallable[bytes, bytes]
            call = channel.unary_stream(f"/{SERVICE}/ReadVersion")
            for data in call(request.SerializeToString(), timeout=SECONDS):
                yield pb.ReadVersionResponse.FromString(data)

    def read(self, version: int, previous: int = 0) -> tuple[pb.VersionPart, bytes]:
        """A part, which was checked."""
        first, *rest = self.messages(version, previous)
        *pieces, last = rest
        assert first.HasField("part") and last.HasField("end")
        content = b"".join(each.data for each in pieces)
        assert all(len(each.data) <= 4 << 20 for each in pieces)
        blocks = [content[begin : begin + BLOCK] for begin in range(0, len(content), BLOCK)]
        assert [zlib.crc32(block) for block in blocks] == list(last.end.blocks)
        assert len(content) == first.part.file.nbytes == first.part.link.nbytes
        return first.part, content

    def _listed(self, seconds: float) -> pb.ListVersionsResponse:
        try:
            return self.list(self.version, seconds)
        except NotPrimaryError as error:
            assert error.primary
            self.address = error.primary
            return self.list(self.version, seconds)

    def follow(self, seconds: float = 0.0) -> int:
        """Comes to the latest version, by increments if there are some that fit."""
        listed = self._listed(seconds)
        while self.version != listed.latest:
            links = [each for each in listed.links if each.version > self.version]
            fitting = [
                each
                for each in links
                if each.previous and (each.previous, each.previous_cut) == (self.version, self.cut)
            ]
            whole = [each for each in links if not each.previous]
            link = (fitting or whole)[0]
            part, content = self.read(link.version, link.previous)
            self._take(part, content)
            self.taken.append(link)
            self.nbytes += len(content)
            self.version, self.cut = link.version, link.cut
        return self.version

    def _take(self, part: pb.VersionPart, content: bytes) -> None:
        before = self.contents if part.link.previous else {}
        self.contents = {
            each.spec.name: _taken(each, content, before) for each in part.file.tensors
        }
        self.deltas |= {each.spec.name for each in part.file.tensors if each.HasField("delta")}

    @property
    def increments(self) -> int:
        return sum(1 for each in self.taken if each.previous)


def _taken(described: SavedTensor, content: bytes, before: Contents) -> bytes:
    rows = described.rows if described.HasField("rows") else None
    tensor = stored_tensor(described.spec, rows)
    count, size = row_count(tensor), row_nbytes(tensor)
    if described.HasField("delta"):
        begin, nbytes = described.begin, described.delta.nbytes
        return _patched(content[begin : begin + nbytes], before[described.spec.name], tensor)
    if not described.HasField("changed"):
        return content[described.begin : described.begin + count * size]
    changed = described.changed
    numbers = torch.frombuffer(
        bytearray(content[changed.begin : changed.begin + 8 * changed.count] + b"\0" * 8),
        dtype=torch.int64,
    )[:-1].tolist()
    assert numbers == sorted({*numbers}) and all(0 <= each < count for each in numbers)
    known = before[described.spec.name][: count * size]
    value = bytearray(known + b"\xff" * (count * size - len(known)))
    filled = {*range(len(known) // size)} | {*numbers}
    assert filled == {*range(count)}, "rows beyond those of the previous version are missing"
    for place, number in enumerate(numbers):
        begin = described.begin + place * size
        value[number * size : (number + 1) * size] = content[begin : begin + size]
    return bytes(value)


def _patched(delta: bytes, base: bytes, tensor: TensorSpec) -> bytes:
    """By the description on the page alone."""
    pieces = [base[begin : begin + BLOCK] for begin in range(0, len(base), BLOCK)]
    sizes = struct.unpack(f"<{len(pieces)}I", delta[: 4 * len(pieces)])
    begin, itemsize, made = 4 * len(pieces), decode_dtype(tensor.dtype).itemsize, b""
    for piece, size in zip(pieces, sizes, strict=True):
        if not size:
            made += piece
            continue
        data = zstandard.ZstdDecompressor().decompress(delta[begin : begin + size])
        bits = np.frombuffer(data, np.uint8).reshape(itemsize, -1).T.reshape(-1)
        made += (bits ^ np.frombuffer(piece, np.uint8)).tobytes()
        begin += size
    assert begin == len(delta) and len(made) == len(base)
    return made


def contents_of(server: ParameterServer) -> Contents:
    """What a server has now, besides the state of optimizers, while nothing changes."""
    found: Contents = {}
    for variable in server._state.store.variables():
        if variable.spec.slot_of:
            continue
        if variable.arena is None:
            found[variable.name] = _bytes(variable.value)
        else:
            table = variable.arena.table
            found[variable.name] = _bytes(variable.arena.storage[: len(table)])
            found[f"{variable.name}[keys]"] = _bytes(table.stored()[0].long())
    return found


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
