"""A cluster with a key of checkpoints takes what it has signed, and nothing else."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stratagem_deploy.checkpoints.writing import sign
from stratagem_proto.errors import DataLossError, PermissionDeniedError
from stratagem_psserver.checkpoints import facts_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_storage.checkpoint.folder import open_checkpoint
from stratagem_storage.checkpoint.policy import CheckpointPolicy
from tests.checkpoints import load
from tests.hostile_checkpoints import altered, canonical, saved
from tests.psserver.checkpoints.asking import save_to, stage
from tests.psserver.wire import RawClient

KEY, OTHER = "the key of this cluster", "the key of another one"


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A signed checkpoint; beside it "unsigned", and "other", which has another signature."""
    folder = saved(tmp_path / "unsigned")
    facts = facts_of(ServerState(ServerSettings()))
    altered(folder, lambda content: content.update(servers={"part-0.safetensors": facts}))
    for name, key in (("run", KEY), ("other", OTHER)):
        (tmp_path / name).mkdir()
        sign(open_checkpoint(folder), tmp_path / name, key)
    return tmp_path / "run" / "checkpoint-1"


@pytest.fixture
def client() -> Iterator[RawClient]:
    settings = ServerSettings(checkpoint_key=KEY)
    with ParameterServer(settings) as server, RawClient(server.address, "") as client:
        client.open()
        client.create(w=torch.full((2,), 5.0), v=torch.full((2,), 6.0))
        yield client


def test_what_is_signed_is_taken(client: RawClient, signed: Path) -> None:
    stage(client, signed)
    stage(client, signed.parent)
    settings = ServerSettings(checkpoint_key=KEY, restore=str(signed.parent))
    with ParameterServer(settings) as server, RawClient(server.address, "") as restored:
        restored.open()
        assert "users/part_0" in restored.listing()


def test_a_signed_checkpoint_has_what_it_had(signed: Path) -> None:
    was = load(open_checkpoint(signed.parents[1] / "unsigned"))
    copy = open_checkpoint(signed, CheckpointPolicy(key=KEY))
    copy.verify()
    now = load(copy)
    assert was.keys() == now.keys()
    assert all(torch.equal(value, now[name]) for name, value in was.items())


@pytest.mark.parametrize(
    ("name", "why"),
    [("unsigned", "is not signed"), ("other", "was altered .* or is of another cluster")],
)
def test_what_is_not_signed_with_the_key_is_refused(
    name: str, why: str, client: RawClient, signed: Path
) -> None:
    root, before = signed.parents[1] / name, client.everything()
    with pytest.raises(PermissionDeniedError, match=f"{why}.*stratagem checkpoint sign"):
        stage(client, root)
    settings = ServerSettings(checkpoint_key=KEY, restore=str(root))
    with pytest.raises(PermissionDeniedError, match=why), ParameterServer(settings):
        pass
    assert client.everything() == before


def test_a_plain_file_is_refused(client: RawClient, tmp_path: Path) -> None:
    save_file({"w": torch.ones(2), "v": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(PermissionDeniedError, match="is a file without a signature"):
        stage(client, tmp_path / "model.safetensors")


def resealed(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Alter an index and keep its signature, with a checksum that is right."""
    document = json.loads((folder / "index.json").read_bytes())
    change(document["content"])
    document["crc32"] = zlib.crc32(canonical(document["content"]))
    data = canonical(document)
    (folder / "index.json").write_bytes(data)
    (folder.parent / "latest").write_text(f"{folder.name} {zlib.crc32(data)}\n")


def test_an_index_that_was_altered_is_refused(client: RawClient, signed: Path) -> None:
    resealed(signed, lambda content: content.update(extra={"epoch": 7}))
    with pytest.raises(PermissionDeniedError, match="was altered since it was signed"):
        stage(client, signed)


def test_bytes_with_the_same_checksum_are_refused(client: RawClient, signed: Path) -> None:
    part = signed / "part-0.safetensors"
    known = zlib.crc32(part.read_bytes())
    part.write_bytes(with_checksum(part.read_bytes(), known))
    assert zlib.crc32(part.read_bytes()) == known
    plain = signed.parents[1] / "unsigned" / signed.name
    (plain / part.name).write_bytes(part.read_bytes())
    open_checkpoint(plain).verify()  # checksums alone say nothing of it
    before = client.everything()
    with pytest.raises(DataLossError, match=r"part-0\.safetensors' is damaged"):
        stage(client, signed)
    assert client.everything() == before


def with_checksum(data: bytes, wanted: int) -> bytes:
    """Other bytes of the same size and with a wanted CRC-32: "w" is changed, and what follows."""
    changed = bytearray(data)
    changed[-12] ^= 0x40
    # A CRC is linear: what each bit of the last eight bytes does to it tells which ones to flip.
    bits = [(place, bit) for place in range(len(data) - 8, len(data)) for bit in range(8)]
    rows: dict[int, tuple[int, list[tuple[int, int]]]] = {}
    start = zlib.crc32(bytes(len(data)))
    for place, bit in bits:
        probe = bytearray(len(data))
        probe[place] = 1 << bit
        effect, used = zlib.crc32(probe) ^ start, [(place, bit)]
        while effect and effect.bit_length() in rows:
            known, others = rows[effect.bit_length()]
            effect, used = effect ^ known, [*used, *others]
        if effect:
            rows[effect.bit_length()] = effect, used
    missing = zlib.crc32(changed) ^ wanted
    while missing:
        effect, used = rows[missing.bit_length()]
        missing ^= effect
        for place, bit in used:
            changed[place] ^= 1 << bit
    return bytes(changed)


def test_servers_write_digests_where_they_have_a_key(client: RawClient, tmp_path: Path) -> None:
    assert len(save_to(client, tmp_path).digests) == 32
    with ParameterServer(ServerSettings()) as server, RawClient(server.address, "") as other:
        other.open()
        other.create(w=torch.ones(2))
        (tmp_path / "other").mkdir()
        assert not save_to(other, tmp_path / "other").HasField("digests")
