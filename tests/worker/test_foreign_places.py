"""Places of results that are at the address of somebody else."""

from __future__ import annotations

from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.handshake_pb2 import ChallengeRequest
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN
from tests.impostors import Impostor
from tests.worker.links import PATIENCE, Handle, connected, payload_of, result


def test_who_has_the_address_learns_nothing_and_gives_nothing() -> None:
    impostor, handle = Impostor(), Handle(7)
    with (
        WorkerServer(WorkerSettings(token=TOKEN)) as worker,
        impostor.listening(),
        connected(worker) as link,
    ):
        place = pb.ResultPlace(address=impostor.address, session_id=b"s" * 16, closure=3)
        link.take(handle.number, place)
        failed = link.run(1, payload_of(lambda: handle)).exception(PATIENCE)
        assert failed is not None
        told = f"{failed} {getattr(failed, 'failure', '')}"
        assert f"cannot copy the result of function 3 from the worker at {impostor.address}" in told
        assert "has another cluster token than this program, which has sent it nothing" in told
        ((method, sent),) = impostor.received
        assert method.endswith("/Challenge")
        # It has a nonce and no proof, name or session.
        challenge = ChallengeRequest.FromString(sent)
        told_of = {field.name for field, _ in challenge.ListFields()}
        assert told_of == {"protocol_version", "oldest_protocol_version", "nonce", "release"}
        assert result(link, 2, lambda: 5) == 5
